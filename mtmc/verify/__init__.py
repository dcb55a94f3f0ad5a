"""The judge: builds, runs, compares and times candidates that it does not trust.

``judge.py`` decides; ``pool.py``, ``worker.py`` hold the processes; ``child.py`` is the only module that runs a
candidate, ``reference.py`` the trusted counterpart; ``compare.py`` is the numeric contract, ``timing.py`` the
interleaved clock, ``inputs.py`` what is tried, ``static.py`` the rules on the source, ``build.py`` the compile check.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtmc.verify.device import gpu_lock
    from mtmc.verify.judge import Judge
    from mtmc.verify.options import JudgeOptions, TimingBudget
    from mtmc.verify.pool import WorkerPool

_HOME = {
    "Judge": "mtmc.verify.judge",
    "JudgeOptions": "mtmc.verify.options",
    "TimingBudget": "mtmc.verify.options",
    "WorkerPool": "mtmc.verify.pool",
    "gpu_lock": "mtmc.verify.device",
}

__all__ = ["Judge", "JudgeOptions", "TimingBudget", "WorkerPool", "gpu_lock"]


def __getattr__(name: str) -> Any:
    """Import on first use: every child imports this package, and few need all of it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)

"""The judge: builds, runs, compares and times candidates that it does not trust.

``judge.py`` decides; ``pool.py``, ``worker.py`` hold the processes; ``child.py`` is the only module that runs a
candidate, ``reference.py`` the trusted counterpart; ``compare.py`` is the numeric contract, ``timing.py`` the interleaved
clock, ``inputs.py`` what is tried, ``static.py`` the rules on the source, ``build.py`` the compile check.
"""

from mtmc.verify.device import gpu_lock
from mtmc.verify.judge import Judge
from mtmc.verify.options import JudgeOptions, TimingBudget
from mtmc.verify.pool import WorkerPool

__all__ = ["Judge", "JudgeOptions", "TimingBudget", "WorkerPool", "gpu_lock"]

"""mtmc turns a PyTorch program into fast GPU kernels that are proven right, one judged step at a time."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtmc.api import OptimizedModule, Report, load_optimized, optimize
    from mtmc.problem import Problem, load_problem
    from mtmc.search.driver import optimize_problem
    from mtmc.search.result import SearchResult

# Name to module: imported when first used, so that `import mtmc` takes no time and needs no torch.
_HOMES = {
    "OptimizedModule": "mtmc.api",
    "Problem": "mtmc.problem",
    "Report": "mtmc.api",
    "SearchResult": "mtmc.search.result",
    "load_optimized": "mtmc.api",
    "load_problem": "mtmc.problem",
    "optimize": "mtmc.api",
    "optimize_problem": "mtmc.search.driver",
}

__all__ = [
    "OptimizedModule",
    "Problem",
    "Report",
    "SearchResult",
    "load_optimized",
    "load_problem",
    "optimize",
    "optimize_problem",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mtmc' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

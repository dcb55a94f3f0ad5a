"""ATen operations as stages, one file a family. Importing this package fills the table of rules."""

from mtmc.capture.aten import (
    activations,
    contractions,
    conv,
    losses,
    norms,
    pointwise,
    pooling,
    random,
    reductions,
    scans,
    views,
)
from mtmc.capture.aten.site import RULES, Args, NotLowered, Piece, Rule, Site

__all__ = [
    "RULES",
    "Args",
    "NotLowered",
    "Piece",
    "Rule",
    "Site",
    "activations",
    "contractions",
    "conv",
    "losses",
    "norms",
    "pointwise",
    "pooling",
    "random",
    "reductions",
    "scans",
    "views",
]

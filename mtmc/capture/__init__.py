"""PyTorch to Program: ``export.py`` traces, ``lower.py`` and the tables in ``aten/`` turn operations into stages,
``probe.py`` measures the precision that the reference really has."""

from mtmc.capture.capture import capture, capture_exported, capture_module
from mtmc.capture.probe import Rounding, measure_rounding, with_rounding

__all__ = ["Rounding", "capture", "capture_exported", "capture_module", "measure_rounding", "with_rounding"]

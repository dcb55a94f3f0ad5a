"""PyTorch to Program: ``export.py`` traces, ``lower.py`` and the tables in ``aten/`` turn operations into stages,
``probe.py`` measures the precision that the reference really has."""

from mtmc.capture.capture import capture, capture_exported, capture_module
from mtmc.capture.probe import Probe, probe, with_rounding

__all__ = ["Probe", "capture", "capture_exported", "capture_module", "probe", "with_rounding"]

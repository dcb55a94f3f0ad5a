"""Logging: one logger a layer below ``mtmc``, written to stderr so that stdout stays for results."""

from __future__ import annotations

import logging
import sys

from mtmc.settings import get_settings

ROOT = "mtmc"


def get_logger(name: str) -> logging.Logger:
    """The logger ``mtmc.<layer>``; accepts a layer (``capture``) or a module's ``__name__``."""
    return logging.getLogger(name if name == ROOT or name.startswith(ROOT + ".") else f"{ROOT}.{name}")


def setup_logging(level: str | int | None = None, rich: bool = True) -> None:
    """Send mtmc's log to stderr; called by the command line and by child processes, never on import.

    Args:
        level: name or number; default ``MTMC_LOG``.
        rich: coloured output with rich; False writes plain lines (child processes, files).
    """
    chosen = get_settings().log if level is None else level
    logger = logging.getLogger(ROOT)
    logger.setLevel(chosen.upper() if isinstance(chosen, str) else chosen)
    logger.propagate = False
    logger.handlers[:] = [_rich_handler() if rich else _plain_handler()]


def _plain_handler() -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    return handler


def _rich_handler() -> logging.Handler:
    # Imported here: rich costs start-up time that child processes don't need.
    from rich.console import Console
    from rich.logging import RichHandler

    handler = RichHandler(console=Console(stderr=True), show_path=False, omit_repeated_times=True)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    return handler

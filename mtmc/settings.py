"""Every ``MTMC_*`` environment variable, in one frozen record. Nothing else in mtmc reads them.

Each field documents itself: ``variables()`` lists name, type, default and text; ``mtmc doctor --json`` too.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtmc.errors import StoreError, UsageError

PREFIX = "MTMC_"


class Settings(BaseModel):
    """Field ``cache_dir`` is read from ``MTMC_CACHE_DIR``, and so on. An unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    cache_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_cache_dir("mtmc", appauthor=False)))
    """Folder of the store, the compiled kernels and the temporary files of the judge."""
    log: str = Field(default="warning", pattern="(?i)^(debug|info|warning|error)$")
    """Level of the log on stderr: debug, info, warning or error."""
    device: str = Field(default="auto", pattern="^(auto|cpu|cuda(:[0-9]+)?)$")
    """Where candidates run: auto (the first GPU, else the interpreter on the CPU), cpu, cuda or cuda:N."""
    gpu_lock: Path | None = None
    """File lock around all launches on the card; default: one a device, in the temporary folder."""
    judge_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds until a child process that runs a candidate is killed."""
    compile_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that building one candidate's kernels may take."""
    judge_memory_bytes: int | None = Field(default=None, gt=0)
    """Largest device memory, in bytes, a judged program may need; default: what is free on the device."""
    interpret_elements: int = Field(default=1 << 16, gt=0)
    """Largest tensor, in elements, that Triton's interpreter gets; inputs are scaled down to it."""
    compile_workers: int = Field(default=0, ge=0)
    """Processes that compile kernels side by side; 0: one a CPU core, at most 8."""
    keep_files: bool = False
    """Keep the judge's temporary files for inspection."""


class Variable(NamedTuple):
    """One environment variable, for listing."""

    name: str
    type: str
    default: str
    doc: str


def variables() -> tuple[Variable, ...]:
    """All variables that mtmc reads, in the order of ``Settings``."""
    return tuple(
        Variable(
            PREFIX + name.upper(),
            getattr(field.annotation, "__name__", str(field.annotation)).replace("NoneType", "None"),
            str(field.get_default(call_default_factory=True)),  # type: ignore[call-arg]
            field.description or "",
        )
        for name, field in Settings.model_fields.items()
    )


@cache
def get_settings() -> Settings:
    """The settings of this process, read once. ``get_settings.cache_clear()`` makes the next call read again.

    Raises:
        UsageError: a variable that does not exist, or a value that does not parse.
    """
    given: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in os.environ.items()
        if name.startswith(PREFIX) and value != ""
    }
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + str(first["loc"][0]).upper()
        if first["type"] == "extra_forbidden":
            known = ", ".join(v.name for v in variables())
            raise UsageError(f"The environment variable {name} is not one that mtmc knows; known: {known}.") from None
        raise UsageError(
            f"The environment variable {name} has the value {first['input']!r}, which is not usable: "
            f"{first['msg']}. Change it or unset it."
        ) from None


def cache_dir(*parts: str) -> Path:
    """The cache folder, or a folder inside it, made if needed and proven writable.

    Raises:
        StoreError: it can't be created or written.
    """
    folder = get_settings().cache_dir.expanduser().joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # access(2) lies on read-only mounts and for root; only a write proves that writing works.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StoreError(
            f"The cache folder {folder} can't be written ({error.strerror or error}); "
            f"set {PREFIX}CACHE_DIR to a folder that can."
        ) from error
    return folder


def gpu_lock_path(device: str = "cuda:0") -> Path:
    """The lock file that serialises everything that launches on ``device``, whoever's process it is."""
    given = get_settings().gpu_lock
    return given or Path(tempfile.gettempdir()) / f"mtmc-gpu-{device.replace(':', '-')}.lock"


def visible_gpu(index: int = 0) -> str | None:
    """What ``CUDA_VISIBLE_DEVICES`` calls the ``index``-th device: a number or a UUID; None: there is none.

    NVML counts every card of the machine, CUDA only the visible ones.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return str(index)
    # CUDA stops at the first entry that is not a device, such as -1.
    names = (name.strip() for name in given.split(","))
    shown = list(takewhile(lambda name: name and not name.startswith("-"), names))
    return shown[index] if index < len(shown) else None

"""``mtmc doctor``: what this machine has, what works, and what to install."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from mtmc.data.hardware import H200, detect
from mtmc.data.record import Record
from mtmc.errors import Exit, StoreError
from mtmc.settings import cache_dir, get_settings, variables

Status = Literal["ok", "optional", "missing"]
PROBE_TIMEOUT_S = 120
NEEDS_BYTES = 2 << 30


class Check(Record):
    """One line of the report."""

    name: str
    status: Status
    """``optional``: absent, and only some commands want it. ``missing``: mtmc can't do its work."""
    found: str
    advice: str = ""
    """What to do; empty where all is well."""


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the Triton probes (a few seconds each).")] = False,
) -> None:
    """What this machine has, what works, what to install. Exits with 3 where something needed is missing."""
    checks = examine(quick)
    if as_json:
        report = {"checks": [c.model_dump() for c in checks], "variables": [v._asdict() for v in variables()]}
        typer.echo(json.dumps(report, indent=2))
    else:
        _show(checks)
    if any(c.status == "missing" for c in checks):
        raise typer.Exit(Exit.ENVIRONMENT)


def examine(quick: bool = False) -> list[Check]:
    """All checks, in the order in which they are shown. Nothing here raises."""
    checks = [_python(), *_packages(), _gpu(), *_tools(), _cache(), _disk()]
    if not quick and find_spec("triton") and find_spec("torch"):
        checks += [
            _probe("Triton compiles for sm_90", "compile", interpret=False),
            _probe("Triton interpreter", "interpret", interpret=True),
        ]
        if detect() is not None:
            checks.append(_probe("Triton runs on the GPU", "run", interpret=False))
    return checks


def _python() -> Check:
    return Check(name="Python", status="ok", found=f"{platform.python_version()} at {sys.executable}")


def _packages() -> list[Check]:
    """Versions from the packages' metadata: importing torch would take seconds."""
    needed = {
        "torch": "pip install 'torch>=2.11'",
        "triton": "pip install 'triton>=3.6' (Linux only); without it nothing can be generated or checked",
    }
    extras = {"openai": "llm", "transformers": "train", "ray": "ray", "plotly": "report", "pyarrow": "report"}
    checks = []
    optional = {name: f"pip install 'mtmc[{extra}]' if you need it" for name, extra in extras.items()}
    for name, advice in (needed | optional).items():
        try:
            checks.append(Check(name=name, status="ok", found=metadata.version(name)))
        except metadata.PackageNotFoundError:
            absent: Status = "missing" if name in needed else "optional"
            checks.append(Check(name=name, status=absent, found="not installed", advice=advice))
    return checks


def _gpu() -> Check:
    gpu = detect()
    if gpu is None:
        advice = (
            "Without a GPU, results are checked in Triton's interpreter and times are roofline "
            f"estimates for an {H200.name.removeprefix('NVIDIA ')}."
        )
        return Check(name="GPU", status="optional", found="none", advice=advice)
    found = f"{gpu.name}, {gpu.target}, {gpu.memory_bytes >> 30} GiB, driver {gpu.driver}, CUDA {gpu.cuda}"
    if gpu.capability < (8, 0):
        return Check(name="GPU", status="missing", found=found, advice="mtmc needs compute capability 8.0 or newer.")
    return Check(name="GPU", status="ok", found=found)


def _tools() -> list[Check]:
    """CUDA's command line tools; Triton's wheel ships cuobjdump and ptxas."""
    spec = find_spec("triton")
    bundled = Path(spec.origin).parent / "backends/nvidia/bin" if spec and spec.origin else None
    advice = {
        "nvcc": "Only the CUDA C++ target needs it: install the CUDA toolkit.",
        "cuobjdump": "Registers and spills can't be reported without it: install the CUDA toolkit or triton.",
    }
    checks = []
    for tool, missing in advice.items():
        path = shutil.which(tool) or (bundled and shutil.which(tool, path=str(bundled)))
        status: Status = "ok" if path else "optional"
        checks.append(Check(name=tool, status=status, found=path or "not found", advice="" if path else missing))
    return checks


def _cache() -> Check:
    try:
        return Check(name="cache folder", status="ok", found=f"{cache_dir()} (writable)")
    except StoreError as error:
        return Check(name="cache folder", status="missing", found="not writable", advice=error.message)


def _disk() -> Check:
    folder = _existing_parent()
    free = shutil.disk_usage(folder).free
    enough = free >= NEEDS_BYTES
    advice = "" if enough else f"Free some space: the store and compiled kernels can take {NEEDS_BYTES >> 30} GiB."
    return Check(
        name="free disk",
        status="ok" if enough else "optional",
        found=f"{free >> 30} GiB at {folder}",
        advice=advice,
    )


def _existing_parent() -> Path:
    """The cache folder, or the nearest folder above it that exists."""
    folder = get_settings().cache_dir.expanduser().absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _probe(name: str, what: str, interpret: bool) -> Check:
    """Run ``mtmc.cli.triton_probe`` in a child process."""
    env = dict(os.environ, TRITON_INTERPRET="1" if interpret else "0")
    command = [sys.executable, "-m", "mtmc.cli.triton_probe", what]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Check(name=name, status="missing", found=f"no answer in {PROBE_TIMEOUT_S} s", advice=_PROBE_ADVICE)
    if done.returncode == 0:
        return Check(name=name, status="ok", found=done.stdout.strip())
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return Check(name=name, status="missing", found=last[:200], advice=_PROBE_ADVICE)


_PROBE_ADVICE = "Install torch and triton in versions that belong together: pip install -c constraints.txt torch triton"


def _show(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    mark = {"ok": "[green]ok     [/]", "optional": "[yellow]absent [/]", "missing": "[red]missing[/]"}
    console = Console()
    table = Table.grid(padding=(0, 2))
    for check in checks:
        advice = f"\n[dim]{escape(check.advice)}[/]" if check.advice else ""
        table.add_row(mark[check.status], check.name, escape(check.found) + advice)
    console.print(table)
    bad = [check.name for check in checks if check.status == "missing"]
    console.print(f"\nNeeded and missing: {', '.join(bad)}." if bad else "\nEverything that mtmc needs is here.")

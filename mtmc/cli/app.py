"""The command ``mtmc``: one module a command; an error becomes one sentence and an exit code.

Command modules import torch and whatever imports it inside their functions, so that ``--help`` is quick.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from typing import Annotated

import typer

from mtmc.cli import bench, doctor, optimize, show, store
from mtmc.data.step import library_versions
from mtmc.errors import Exit, MtmcError
from mtmc.log import setup_logging

app = typer.Typer(
    name="mtmc",
    help="Turns a PyTorch program into fast GPU kernels that are proven right, one judged step at a time.",
    no_args_is_help=True,
    add_completion=False,
    # Errors are printed by main(); typer's own tracebacks show every local variable.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"mtmc {library_versions().get('mtmc', '(not installed, run from its source)')}")
        raise typer.Exit


@app.callback()
def _common(
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Log more: -v info, -vv debug.")] = 0,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    setup_logging({0: None, 1: logging.INFO}.get(verbose, logging.DEBUG))


for command in (optimize, show, bench, store, doctor):
    command.register(app)


def main() -> None:
    """Run the command line; exits with a code of ``mtmc.errors.Exit``."""
    try:
        app()
    except MtmcError as error:
        sys.exit(_report(type(error).__name__, error.message, error.exit_code))
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except Exception as error:
        # A bug of ours, not of the user: the traceback is what a report needs.
        traceback.print_exception(error)
        text = f"internal error ({type(error).__name__}: {error}); please report the traceback above."
        sys.exit(_report("InternalError", text, Exit.INTERNAL))


def _report(kind: str, message: str, code: int) -> int:
    """One sentence on stderr; with ``--json`` also one object on stdout, where a machine reads."""
    typer.echo(f"mtmc: {message}", err=True)
    if "--json" in sys.argv:
        typer.echo(json.dumps({"error": kind, "message": message, "exit_code": int(code)}))
    return int(code)

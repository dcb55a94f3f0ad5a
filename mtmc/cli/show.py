"""``mtmc show``: the Program of a file, its kernels, and what could be done to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mtmc.data.hardware import Hardware
    from mtmc.ir.program import Program


def register(app: typer.Typer) -> None:
    app.command("show")(show)


def show(
    file: Annotated[Path, typer.Argument(help="A file with Model, get_inputs and get_init_inputs.")],
    actions: Annotated[int, typer.Option(min=0, help="Legal actions to list, at most.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Capture a file and print its Program, the estimated cost of each kernel, and the legal actions."""
    from mtmc.actions import propose
    from mtmc.cli.optimize import quiet_torch
    from mtmc.data.hardware import H200, detect
    from mtmc.ir.cost import shares
    from mtmc.problem import load_problem
    from mtmc.search.driver import capture_quietly

    quiet_torch()
    hardware = detect() or H200
    program = capture_quietly(load_problem(file))
    found = propose(program, hardware, shares(program, hardware), actions)
    lines = [action.describe(program) for action in found.actions]
    if as_json:
        import json

        from mtmc.ir.codec import to_json
        from mtmc.ir.printer import print_program

        fields = {
            "program": json.loads(to_json(program)),
            "text": print_program(program),
            "kernels": _kernels(program, hardware),
            "actions": lines,
            "actions_cut": found.cut,
            "hardware": hardware.name,
        }
        typer.echo(json.dumps(fields))
    else:
        _print(program, hardware, lines, found.cut)


def _kernels(program: Program, hardware: Hardware) -> list[dict[str, Any]]:
    """Estimates by kernel, in program order."""
    from mtmc.ir.cost import kernel_cost, kernel_ms, shares

    share = shares(program, hardware)
    rows = []
    for kernel in program.kernels:
        cost = kernel_cost(program, kernel)
        ms, bound = kernel_ms(program, kernel, hardware)
        rows.append(
            {
                "id": kernel.id,
                "op": kernel.op,
                "lines": kernel.lines,
                "estimate_ms": ms,
                "share": share[kernel.id],
                "bound": bound,
                "flops": cost.flops,
                "bytes": cost.bytes,
            }
        )
    return rows


def _print(program: Program, hardware: Hardware, lines: list[str], cut: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from mtmc.ir.printer import print_program
    from mtmc.report.words import milliseconds, percent

    console = Console()
    console.print(print_program(program), markup=False, highlight=False, soft_wrap=True)
    table = Table(title=f"Roofline estimates for the {hardware.name}", title_justify="left")
    for name in ("kernel", "operation", "line", "share", "time", "bound"):
        table.add_column(name, justify="right" if name in ("share", "time") else "left")
    for row in _kernels(program, hardware):
        where = ", ".join(map(str, row["lines"]))
        table.add_row(
            row["id"], row["op"], where, percent(row["share"]), milliseconds(row["estimate_ms"]), row["bound"]
        )
    console.print(table)
    console.print("Legal actions" + (f", {cut} more not listed:" if cut else ":"))
    for line in lines:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)

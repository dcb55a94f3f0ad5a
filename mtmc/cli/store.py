"""``mtmc store export | merge | info``: what was recorded, and moving it between machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

StorePath = Annotated[
    Path | None,
    typer.Option("--store", help="Another store file; default: store.sqlite in the cache folder."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="What was recorded: export, merge, info.")
    group.command("export")(export)
    group.command("merge")(merge)
    group.command("info")(info)
    app.add_typer(group, name="store")


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the shards go; made if needed.")],
    parquet: Annotated[
        bool,
        typer.Option("--parquet", help="A flat Parquet table for analysis instead; can't be merged back."),
    ] = False,
    max_mib: Annotated[float, typer.Option("--max-mib", min=0.01, help="Largest shard, MiB.")] = 16.0,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Write the whole store as gzipped JSON lines, in shards of at most 16 MiB."""
    from mtmc.store import shards
    from mtmc.store.parquet import export_parquet
    from mtmc.store.store import Store

    with Store.open(store) as opened:
        if parquet:
            files = export_parquet(opened, folder)
            rows, left_out = opened.info().steps, 0
        else:
            files, rows, left_out = shards.export(opened, folder, int(max_mib * (1 << 20)))
    if as_json:
        typer.echo(json.dumps({"files": [str(f) for f in files], "rows": rows, "too_large": left_out}))
        return
    typer.echo(f"{rows} rows in {len(files)} file{'s' * (len(files) != 1)} in {folder}")
    if left_out:
        typer.echo(f"{left_out} rows are larger than a shard and were left out; give a larger --max-mib.", err=True)


def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="PATHS", help="Shards, or folders of shards.")],
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Add shards from here or another machine; rows that are known are skipped."""
    from mtmc.store import shards
    from mtmc.store.store import Store

    with Store.open(store) as opened:
        merged = shards.merge(opened, paths)
    if as_json:
        typer.echo(json.dumps(merged._asdict()))
    else:
        typer.echo(f"{merged.new} new rows ({merged.new_steps} steps) and {merged.known} known, {merged.files} shards")


def info(store: StorePath = None, as_json: AsJson = False) -> None:
    """How much there is and where."""
    from mtmc.store.store import Store

    with Store.open(store) as opened:
        found = opened.info()
    if as_json:
        typer.echo(json.dumps(found._asdict() | {"path": str(found.path)}))
        return
    typer.echo(f"{found.path} ({found.file_bytes / (1 << 20):.1f} MiB)")
    for name in ("runs", "problems", "episodes", "steps", "measurements", "results", "texts"):
        typer.echo(f"{getattr(found, name):>10,} {name}")

"""The steps as one flat Parquet table, for analysis with pandas, Polars or DuckDB. Needs pyarrow; can't be
merged back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mtmc.data.step import Step
from mtmc.errors import EnvironmentProblem, StoreError
from mtmc.store.store import Store, dumps

ROWS_A_FILE = 2_000
# Columns that hold JSON text: records of their own, or text too irregular for a column type.
_JSON = ("versions", "evaluation", "local", "hardware", "libraries")


def export_parquet(store: Store, folder: str | Path) -> tuple[Path, ...]:
    """Write ``steps-0001.parquet`` and so on: one row a step, nested records as JSON text.

    Raises:
        EnvironmentProblem: pyarrow is not installed.
        StoreError: the folder can't be written.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise EnvironmentProblem(
            "Parquet needs pyarrow, which is not installed; run `pip install pyarrow`, or export without --parquet."
        ) from error
    folder = Path(folder)
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, rows in enumerate(_batches(store), 1):
            files.append(folder / f"steps-{number:04d}.parquet")
            pyarrow.parquet.write_table(
                pyarrow.Table.from_pylist(rows, _schema(pyarrow)), files[-1], compression="zstd"
            )
    except OSError as error:
        raise StoreError(f"The folder {folder} can't be written ({error}); choose another folder.") from error
    return tuple(files)


def _batches(store: Store) -> Iterator[list[dict[str, Any]]]:
    steps = store.steps()
    while batch := list(itertools.islice(steps, ROWS_A_FILE)):
        yield [_flat(step) for step in batch]


def _flat(step: Step) -> dict[str, Any]:
    fields = step.model_dump(mode="json")
    judged = step.evaluation
    return fields | {
        **{name: dumps(fields[name]) if fields[name] is not None else None for name in _JSON},
        "outcome": judged.outcome.value if judged else None,
        "ms": judged.ms if judged else None,
        "speedup": judged.speedup if judged else None,
    }


def _schema(pa: Any) -> Any:
    """Explicit types: a batch whose optional fields are all empty must not change a column's type."""
    kinds: dict[Any, Any] = {
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        str: pa.string(),
        int | None: pa.int64(),
    }
    kinds |= {tuple[str, ...]: pa.list_(pa.string()), tuple[int, ...]: pa.list_(pa.int64())}
    kinds |= {tuple[float, ...]: pa.list_(pa.float64())}
    columns = {
        name: pa.string() if name in _JSON else kinds[field.annotation] for name, field in Step.model_fields.items()
    }
    columns |= {"outcome": pa.string(), "ms": pa.float64(), "speedup": pa.float64()}
    return pa.schema(list(columns.items()))

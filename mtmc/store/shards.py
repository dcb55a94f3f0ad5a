"""Shards: the store as gzipped JSON lines of at most 16 MiB, to move rows between machines.

Every shard stands alone: it carries the texts that its rows name. A line is one object with a ``kind``::

    {"kind": "header", "schema": 1, "store": "3f9c…"}
    {"kind": "run" | "episode", "payload": {…}}
    {"kind": "result", "fingerprint": "…", "problem": "…", "payload": {…}}
    {"kind": "blob", "text": "…"}
    {"kind": "measurement", "measure_key": "…", "evaluation": "<blob key>"}
    {"kind": "step", "payload": {…}}                 long fields replaced by blob keys

Merging is idempotent, since every row's key is the hash of its content.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from mtmc.data.step import SCHEMA, Episode, RunInfo, content_hash
from mtmc.errors import StoreError
from mtmc.log import get_logger
from mtmc.store.store import Store, blob_keys, dumps

log = get_logger(__name__)

MAX_BYTES = 16 << 20
SUFFIX = ".jsonl.gz"


class Exported(NamedTuple):
    """Files written, rows in them, and rows that alone are larger than a shard may be."""

    files: tuple[Path, ...]
    rows: int
    too_large: int


class Merged(NamedTuple):
    """Rows that were new and rows that were known."""

    files: int
    new: int
    known: int
    new_steps: int


class _Row(NamedTuple):
    line: dict[str, Any]
    blobs: tuple[str, ...] = ()


class _Writer:
    """Gzipped lines into numbered files, each at most ``limit`` bytes. Files appear whole or not at all."""

    def __init__(self, folder: Path, prefix: str, header: str, limit: int) -> None:
        self.folder, self.prefix, self.header, self.limit = folder, prefix, header, limit
        self.files: list[Path] = []
        self._begin()

    def _begin(self) -> None:
        self.blobs: set[str] = set()
        self._parts: list[bytes] = []
        self._size = 0
        self._pending = 0
        self._rows = 0
        self._zip = zlib.compressobj(9, zlib.DEFLATED, 31)
        self._add(self.header)

    def _add(self, text: str) -> None:
        raw = text.encode()
        self._keep(self._zip.compress(raw))
        # What zlib still holds is at most the raw bytes since the last flush, plus a little framing.
        self._pending += len(raw) + len(raw) // 1000 + 64

    def _keep(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)

    def fits(self, text: str) -> bool:
        """True where the shard stays within its limit with this text, however badly it compresses."""
        need = len(text.encode()) * 1001 // 1000 + 256
        if self._size + self._pending + need <= self.limit:
            return True
        self._keep(self._zip.flush(zlib.Z_SYNC_FLUSH))
        self._pending = 0
        return self._size + need <= self.limit

    def add(self, text: str, blobs: Iterable[str]) -> None:
        self._add(text)
        self.blobs.update(blobs)
        self._rows += 1

    def next(self) -> None:
        """Close this shard and begin another; nothing happens while it is empty."""
        if not self._rows:
            return
        self._keep(self._zip.flush())
        path = self.folder / f"{self.prefix}{len(self.files) + 1:04d}{SUFFIX}"
        part = path.with_name(path.name + ".part")
        part.write_bytes(b"".join(self._parts))
        os.replace(part, path)
        self.files.append(path)
        self._begin()


def export(store: Store, folder: str | Path, max_bytes: int = MAX_BYTES) -> Exported:
    """Write the whole store as shards into ``folder`` (made if needed).

    Names carry the store's id, so that shards of several machines lie side by side; exporting again replaces
    this store's shards.

    Raises:
        StoreError: the folder can't be written or the store can't be read.
    """
    folder = Path(folder)
    store_id = store.database.one("SELECT value FROM meta WHERE name = 'store_id'")
    assert store_id is not None
    prefix = f"mtmc-{store_id[0]}-"
    header = dumps({"kind": "header", "schema": SCHEMA, "store": store_id[0]}) + "\n"
    rows = too_large = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writer = _Writer(folder, prefix, header, max_bytes)
        for row in _rows(store):
            text = _text(store, row, writer.blobs)
            if not writer.fits(text):
                writer.next()
                text = _text(store, row, writer.blobs)
                if not writer.fits(text):
                    log.error("A row of %d bytes is larger than a shard and was left out.", len(text))
                    too_large += 1
                    continue
            writer.add(text, row.blobs)
            rows += 1
        writer.next()
        for old in set(folder.glob(f"{prefix}*{SUFFIX}")) - set(writer.files):
            old.unlink()
    except OSError as error:
        raise StoreError(
            f"The folder {folder} can't be written ({error.strerror or error}); the store itself is "
            "unchanged. "
            "Choose another folder."
        ) from error
    return Exported(tuple(writer.files), rows, too_large)


def _rows(store: Store) -> Iterator[_Row]:
    query = store.database.rows
    for kind, table in (("run", "runs"), ("episode", "episodes")):
        for (payload,) in query(f"SELECT payload FROM {table} ORDER BY rowid"):
            yield _Row({"kind": kind, "payload": json.loads(payload)})
    for fingerprint, problem, payload in query("SELECT fingerprint, problem, payload FROM results ORDER BY rowid"):
        row = {
            "kind": "result",
            "fingerprint": fingerprint,
            "problem": problem,
            "payload": json.loads(payload),
        }
        yield _Row(row)
    # Steps before measurements: a step's measurement then finds its text in the same shard, mostly.
    for (payload,) in query("SELECT payload FROM steps ORDER BY rowid"):
        yield _Row({"kind": "step", "payload": json.loads(payload)}, tuple(blob_keys(payload)))
    for measure_key, blob in query("SELECT measure_key, evaluation FROM measurements ORDER BY rowid"):
        yield _Row({"kind": "measurement", "measure_key": measure_key, "evaluation": blob}, (blob,))


def _text(store: Store, row: _Row, present: set[str]) -> str:
    blobs = [dumps({"kind": "blob", "text": store.database.text(key)}) for key in row.blobs if key not in present]
    return "\n".join([*blobs, dumps(row.line)]) + "\n"


def merge(store: Store, paths: Sequence[str | Path]) -> Merged:
    """Add the rows of shards (files, or folders of them) to the store; rows already known are skipped.

    A shard is added whole or not at all, so a bad one leaves the store as it was before that shard.

    Raises:
        StoreError: no shard there, one that does not read, or one that a newer mtmc wrote.
    """
    files = [file for path in paths for file in _files(Path(path))]
    new = known = steps = 0
    for file in files:
        with store.database.transaction():
            for kind, was_new in _merge_file(store, file):
                new, known = new + was_new, known + (not was_new)
                steps += was_new and kind == "step"
    return Merged(len(files), new, known, steps)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(path.glob(f"*{SUFFIX}"))
        if not found:
            raise StoreError(f"The folder {path} holds no shard (*{SUFFIX}); `mtmc store export {path}` writes them.")
        return found
    if not path.is_file():
        raise StoreError(f"The shard {path} does not exist; give files or folders that `mtmc store export` wrote.")
    return [path]


def _merge_file(store: Store, file: Path) -> Iterator[tuple[str, bool]]:
    """Yields kind and whether the row was new, for everything but headers and texts."""
    present: set[str] = set()
    number = 0
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007
                row = json.loads(line)
                if row["kind"] == "blob":
                    present.add(store.database.put_text(row["text"]))
                elif row["kind"] == "header":
                    _check(row["schema"] <= SCHEMA, "a newer mtmc wrote it; upgrade mtmc")
                else:
                    yield row["kind"], _insert(store, row, present)
        _check(number > 0, "it is empty")
    except (
        OSError,
        EOFError,
        zlib.error,
        UnicodeDecodeError,
        ValidationError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        raise StoreError(
            f"The shard {file} does not read at line {number + 1}: {_reason(error)}. "
            "Nothing of it was merged; copy or export it again."
        ) from error


def _insert(store: Store, row: dict[str, Any], present: set[str]) -> bool:
    kind, database = row["kind"], store.database
    if kind == "run":
        run = RunInfo.model_validate_json(json.dumps(row["payload"]))
        payload = dumps(run.model_dump(mode="json"))
        return database.insert("runs", content_hash(payload), run.run_id, payload)
    if kind == "episode":
        return store.insert_episode(Episode.model_validate_json(json.dumps(row["payload"])))
    if kind == "result":
        return store.insert_result(row["fingerprint"], row["problem"], dumps(row["payload"]))
    if kind == "measurement":
        _check(row["evaluation"] in present, "it lacks a text that this row names")
        return store.insert_measurement(row["measure_key"], row["evaluation"])
    _check(kind == "step", f"it has a row of unknown kind {kind!r}; upgrade mtmc")
    payload = dumps(row["payload"])
    _check(present.issuperset(blob_keys(payload)), "it lacks a text that this row names")
    return store.insert_step(content_hash(payload), store.unpack(payload), payload)


def _check(fine: bool, reason: str) -> None:
    if not fine:
        raise ValueError(reason)


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"no field {error}" if isinstance(error, KeyError) else str(error)

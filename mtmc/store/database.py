"""The SQLite file: opening, writing transactions and errors in words. Knows nothing of the records."""

from __future__ import annotations

import sqlite3
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from mtmc.data.step import content_hash
from mtmc.errors import StoreError

SCHEMA = 1
BUSY_SECONDS = 60.0


class Database:
    """One connection. Use it in the process and thread that opened it; other processes open their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise self._error(error) from error
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._in_words():
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA:
            raise StoreError(
                f"The store {self.path} has schema {version}, which a newer mtmc wrote; this one reads up to "
                f"{SCHEMA}. "
                "Upgrade mtmc, or set MTMC_CACHE_DIR to another folder."
            )
        with self._in_words():
            # WAL lets readers and one writer work side by side; a network file system that can't do it keeps
            # DELETE.
            self._switch_to_wal()
            # FULL: a committed step survives a power loss too; a step takes seconds, the fsync milliseconds.
            self._connection.execute("PRAGMA synchronous = FULL")
        if version == SCHEMA:
            return
        schema = resources.files("mtmc.store").joinpath("schema.sql").read_text()
        with self.transaction():
            # One by one: executescript would commit first. No comment of the schema holds a semicolon.
            for statement in schema.split(";"):
                self._connection.execute(statement)
            self._connection.execute("INSERT OR IGNORE INTO meta VALUES ('store_id', ?)", (uuid.uuid4().hex[:12],))
            self._connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def _switch_to_wal(self) -> None:
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                # SQLite does not wait here, unlike for every other lock: two first openings would collide.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All inside is committed together, or not at all. Waits up to a minute for other writers.

        Raises:
            StoreError: disk full, not writable, damaged, or locked for too long. Earlier transactions stay.
        """
        with self._in_words():
            # IMMEDIATE takes the write lock now: a read that upgrades later could fail without waiting.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk rolls back by itself, and then there is nothing to roll back.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: OSError | sqlite3.Error) -> StoreError:
        text = str(error)
        if "full" in text:
            return StoreError(
                f"The disk that holds the store {self.path} is full; what was recorded before is safe. "
                "Free some space, or set MTMC_CACHE_DIR to another disk."
            )
        if "malformed" in text or "not a database" in text:
            return StoreError(
                f"The store {self.path} is damaged ({text}). Move the file aside; mtmc then starts a new "
                "one, and "
                "`mtmc store merge` brings back what was exported."
            )
        if "locked" in text:
            return StoreError(
                f"Another process held the store {self.path} for more than {BUSY_SECONDS:.0f} s. "
                "Try again, or set MTMC_CACHE_DIR to a folder of this process."
            )
        return StoreError(
            f"The store {self.path} can't be opened, read or written ({text}). "
            "Check its permissions, or set MTMC_CACHE_DIR to a folder that can be written."
        )

    def rows(self, query: str, args: tuple[object, ...] = ()) -> Iterator[tuple]:
        """Rows of a query, streamed. Another writer does not disturb the iteration."""
        with self._in_words():
            yield from self._connection.execute(query, args)

    def one(self, query: str, args: tuple[object, ...] = ()) -> tuple | None:
        with self._in_words():
            return self._connection.execute(query, args).fetchone()

    def insert(self, table: str, *values: object) -> bool:
        """Add a row whose first value is its key; False where the key is known. Inside a transaction."""
        marks = ",".join("?" * len(values))
        with self._in_words():
            return self._connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", values).rowcount > 0

    def put_text(self, text: str) -> str:
        """Keep a text once, compressed; returns its key. Inside a transaction."""
        key = content_hash(text)
        if self.one("SELECT 1 FROM blobs WHERE key = ?", (key,)) is None:
            raw = text.encode()
            self.insert("blobs", key, len(raw), zlib.compress(raw, 6))
        return key

    def text(self, key: str) -> str:
        row = self.one("SELECT data FROM blobs WHERE key = ?", (key,))
        if row is None:
            raise StoreError(f"The store {self.path} lacks the text {key} that one of its rows names; it is damaged.")
        return zlib.decompress(row[0]).decode()

    def close(self) -> None:
        self._connection.close()

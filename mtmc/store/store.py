"""The store: append what happened, find what is known. Each record is committed before the call returns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from pydantic import ValidationError

from mtmc.data.evaluation import Evaluation, Outcome
from mtmc.data.step import Episode, RunInfo, Step, content_hash
from mtmc.errors import StoreError
from mtmc.settings import cache_dir
from mtmc.store.database import Database

# Fields of a Step that are long or repeat from step to step; the payload holds their blob keys.
SHARED_FIELDS = (
    "parent",
    "child",
    "source",
    "actions",
    "evaluation",
    "local",
    "hardware",
    "libraries",
    "versions",
)

# Verdicts that depend on the moment: judged again instead of believed.
TRANSIENT = frozenset({Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY, Outcome.REFERENCE_ERROR})


class Info(NamedTuple):
    """Counts of rows, and bytes on disk."""

    path: Path
    runs: int
    episodes: int
    steps: int
    measurements: int
    results: int
    problems: int
    texts: int
    text_bytes: int
    """Before compression."""
    file_bytes: int


def dumps(value: Any) -> str:
    """Canonical JSON: equal values give equal text, hence equal keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class Store:
    """Append-only. Open one in every process that uses it; several processes may write at the same time."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, path: str | Path | None = None) -> Store:
        """Open or create the store; ``path`` defaults to ``store.sqlite`` in the cache folder.

        Raises:
            StoreError: it can't be opened, created or written.
        """
        return cls(Database(Path(path) if path is not None else cache_dir() / "store.sqlite"))

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def path(self) -> Path:
        return self.database.path

    # Writing

    def record_run(self, run: RunInfo) -> None:
        payload = dumps(run.model_dump(mode="json"))
        with self.database.transaction():
            self.database.insert("runs", content_hash(payload), run.run_id, payload)

    def record_episode(self, episode: Episode) -> None:
        """Call it when the episode starts and again when it ends."""
        with self.database.transaction():
            self.insert_episode(episode)

    def insert_episode(self, episode: Episode) -> bool:
        """The same inside a transaction that is open; False where the row was known."""
        payload = dumps(episode.model_dump(mode="json"))
        return self.database.insert(
            "episodes",
            content_hash(payload),
            episode.episode_id,
            episode.problem_key,
            episode.updated,
            payload,
        )

    def record_step(self, step: Step) -> str:
        """Keep a step, and its measurement if it is a new one. Returns the step's content key.

        Raises:
            StoreError: it was not kept; everything before it was.
        """
        payload, texts = pack(step)
        key = content_hash(payload)
        with self.database.transaction():
            for text in texts:
                self.database.put_text(text)
            self.insert_step(key, step, payload)
            if step.measure_key and step.measured and step.evaluation is not None:
                self.insert_measurement(step.measure_key, content_hash(dumps(step.evaluation.model_dump(mode="json"))))
        return key

    def insert_step(self, key: str, step: Step, payload: str) -> bool:
        """One row of ``steps``, inside a transaction that is open; False where it was known."""
        judged = step.evaluation
        return self.database.insert(
            "steps",
            key,
            step.episode_id,
            step.problem_key,
            step.index,
            step.parent_hash,
            step.child_hash,
            step.action,
            judged.outcome.value if judged else None,
            judged.ms if judged else None,
            judged.speedup if judged else None,
            payload,
        )

    def record_measurement(self, measure_key: str, evaluation: Evaluation) -> None:
        """Keep a verdict that belongs to no step (the start, a final check)."""
        with self.database.transaction():
            self.insert_measurement(measure_key, self.database.put_text(dumps(evaluation.model_dump(mode="json"))))

    def insert_measurement(self, measure_key: str, evaluation: str) -> bool:
        """One row of ``measurements`` for an evaluation's blob key, inside a transaction that is open."""
        return self.database.insert("measurements", content_hash(measure_key + evaluation), measure_key, evaluation)

    def record_result(self, fingerprint: str, problem: str, row: str) -> None:
        """Keep one finished benchmark problem; ``row`` is JSON text that the bench layer reads back."""
        with self.database.transaction():
            self.insert_result(fingerprint, problem, row)

    def insert_result(self, fingerprint: str, problem: str, row: str) -> bool:
        return self.database.insert("results", content_hash(fingerprint + row), fingerprint, problem, row)

    # Reading

    def lookup(self, measure_key: str) -> Evaluation | None:
        """The newest lasting verdict under this key (``mtmc.data.step.measure_key``), or None.

        Timeouts, exhausted memory and failures of the reference depend on the moment and are never answered.
        """
        query = "SELECT evaluation FROM measurements WHERE measure_key = ? ORDER BY rowid DESC"
        for (blob,) in self.database.rows(query, (measure_key,)):
            evaluation = Evaluation.model_validate_json(self.database.text(blob))
            if evaluation.outcome not in TRANSIENT:
                return evaluation
        return None

    def runs(self) -> Iterator[RunInfo]:
        for (payload,) in self.database.rows("SELECT payload FROM runs ORDER BY rowid"):
            yield RunInfo.model_validate_json(payload)

    def episodes(self, problem_key: str | None = None) -> Iterator[Episode]:
        """The latest row of every episode (of one problem), oldest first."""
        query = """
            SELECT payload FROM episodes AS e WHERE (?1 IS NULL OR problem_key = ?1) AND rowid = (
                SELECT rowid FROM episodes WHERE episode_id = e.episode_id ORDER BY updated DESC, rowid DESC
                LIMIT 1)
            ORDER BY updated, rowid"""
        for (payload,) in self.database.rows(query, (problem_key,)):
            yield Episode.model_validate_json(payload)

    def steps(
        self, *, episode_id: str | None = None, problem_key: str | None = None, parent_hash: str | None = None
    ) -> Iterator[Step]:
        """Steps that match every given filter, in the order they were recorded."""
        given = {"episode_id": episode_id, "problem_key": problem_key, "parent_hash": parent_hash}
        used = {name: value for name, value in given.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in used) or "1"
        for (payload,) in self.database.rows(
            f"SELECT payload FROM steps WHERE {where} ORDER BY rowid", (*used.values(),)
        ):
            yield self.unpack(payload)

    def results(self, fingerprint: str) -> dict[str, str]:
        """Problem to JSON row, the newest where there are several."""
        query = "SELECT problem, payload FROM results WHERE fingerprint = ? ORDER BY rowid"
        return dict(self.database.rows(query, (fingerprint,)))

    def info(self) -> Info:
        """How much there is."""
        counts = self.database.one(
            """SELECT (SELECT count(*) FROM runs), (SELECT count(DISTINCT episode_id) FROM episodes),
                (SELECT count(*) FROM steps), (SELECT count(*) FROM measurements), (SELECT count(*) FROM
                results), (SELECT count(DISTINCT problem_key) FROM episodes),
                (SELECT count(*) FROM blobs), (SELECT coalesce(sum(size), 0) FROM blobs)"""
        )
        assert counts is not None
        return Info._make((self.path, *counts, self.path.stat().st_size))

    def unpack(self, payload: str) -> Step:
        """The Step of a stored payload."""
        fields = json.loads(payload)
        for name in SHARED_FIELDS:
            if fields.get(name):
                text = self.database.text(fields[name])
                fields[name] = text if name in _PLAIN else json.loads(text)
        try:
            return Step.model_validate_json(json.dumps(fields))
        except ValidationError as error:
            raise StoreError(
                f"A step in {self.path} does not read as this mtmc's record ({error.errors()[0]['msg']}); "
                "another version wrote it. Use that version, or export there and merge here after an upgrade."
            ) from error


_PLAIN = frozenset({"parent", "child", "source"})


def pack(step: Step) -> tuple[str, list[str]]:
    """A step as payload (canonical JSON with blob keys) and the texts that those keys name."""
    fields = step.model_dump(mode="json")
    texts = []
    for name in SHARED_FIELDS:
        value = fields[name]
        if value:
            texts.append(value if name in _PLAIN else dumps(value))
            fields[name] = content_hash(texts[-1])
    return dumps(fields), texts


def blob_keys(payload: str) -> list[str]:
    """The blob keys that a step's payload names."""
    fields = json.loads(payload)
    return [fields[name] for name in SHARED_FIELDS if fields.get(name)]

-- The store, schema 1. Append-only: rows are inserted, never updated or deleted.
-- Every key is a content hash, so the same row from two machines is one row.

CREATE TABLE IF NOT EXISTS meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- Long or repeated texts: Programs, sources, candidate lists, evaluations. zlib, UTF-8.
CREATE TABLE IF NOT EXISTS blobs (
    key  TEXT PRIMARY KEY,              -- blake2b of the text, 16 bytes, hex
    size INTEGER NOT NULL,              -- bytes before compression
    data BLOB NOT NULL
);

CREATE TABLE IF NOT EXISTS runs (
    key     TEXT PRIMARY KEY,           -- hash of the payload
    run_id  TEXT NOT NULL,
    payload TEXT NOT NULL               -- data.step.RunInfo as JSON
);

-- One episode has a row when it starts and one when it ends: the later one counts.
CREATE TABLE IF NOT EXISTS episodes (
    key         TEXT PRIMARY KEY,
    episode_id  TEXT NOT NULL,
    problem_key TEXT NOT NULL,
    updated     REAL NOT NULL,          -- Unix seconds
    payload     TEXT NOT NULL           -- data.step.Episode as JSON
);
CREATE INDEX IF NOT EXISTS episodes_by_problem ON episodes (problem_key, updated);
CREATE INDEX IF NOT EXISTS episodes_by_id ON episodes (episode_id, updated);

CREATE TABLE IF NOT EXISTS steps (
    key         TEXT PRIMARY KEY,       -- hash of the payload
    episode_id  TEXT NOT NULL,
    problem_key TEXT NOT NULL,
    step        INTEGER NOT NULL,
    parent_hash TEXT NOT NULL,
    child_hash  TEXT NOT NULL,
    action      TEXT NOT NULL,
    outcome     TEXT,                   -- NULL: not judged
    ms          REAL,                   -- median measured milliseconds, NULL: not timed
    speedup     REAL,                   -- eager over candidate, same run
    payload     TEXT NOT NULL           -- data.step.Step as JSON, long fields replaced by blob keys
);
CREATE INDEX IF NOT EXISTS steps_by_episode ON steps (episode_id, step);
CREATE INDEX IF NOT EXISTS steps_by_problem ON steps (problem_key);
CREATE INDEX IF NOT EXISTS steps_by_parent ON steps (parent_hash);

CREATE TABLE IF NOT EXISTS measurements (
    key         TEXT PRIMARY KEY,       -- hash of measure_key and evaluation
    measure_key TEXT NOT NULL,
    evaluation  TEXT NOT NULL           -- blob key
);
CREATE INDEX IF NOT EXISTS measurements_by_key ON measurements (measure_key);

-- Finished benchmark problems, so that a run resumes on another machine.
CREATE TABLE IF NOT EXISTS results (
    key         TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,          -- of suite, hardware, versions and flags
    problem     TEXT NOT NULL,
    payload     TEXT NOT NULL           -- bench.row.BenchRow as JSON
);
CREATE INDEX IF NOT EXISTS results_by_fingerprint ON results (fingerprint);

from __future__ import annotations

import gzip
import json
import math
import multiprocessing
import os
import sqlite3
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from mtmc.data.evaluation import Baselines, ErrorStats, Evaluation, Outcome, Timing
from mtmc.data.hardware import H200
from mtmc.data.step import Episode, RunInfo, Step, Versions, content_hash, measure_key
from mtmc.errors import StoreError
from mtmc.store.parquet import export_parquet
from mtmc.store.shards import export, merge
from mtmc.store.store import Store

VERSIONS = Versions(vocabulary="v1", codegen="c1", judge="j1")
LIBRARIES = {"python": "3.12.1", "torch": "2.11.0", "triton": "3.6.0", "mtmc": "0.1"}


def accepted(ms: float = 1.5) -> Evaluation:
    timing = Timing(samples_ms=tuple(ms + 0.001 * i for i in range(20)))
    return Evaluation(outcome=Outcome.ACCEPTED, timing=timing, reference_timing=Timing(samples_ms=(3.0,) * 20))


def wrong() -> Evaluation:
    stats = ErrorStats(
        input_set="seed0",
        output="out0",
        norm=math.nan,
        worst=math.inf,
        reference_norm=1e-7,
        reference_worst=1e-6,
        allowed_norm=2e-7,
        allowed_worst=2e-6,
    )
    return Evaluation(outcome=Outcome.WRONG_RESULT, message="out0 holds NaN", errors=(stats,))


def step(index: int = 0, evaluation: Evaluation | None = None, episode: str = "e1", key: str = "") -> Step:
    source = f"class ModelNew: pass  # {index} é\n" + "x = 1\n" * 200
    return Step(
        run_id="r1",
        episode_id=episode,
        problem_key="p1",
        index=index,
        path=tuple(f"action {i}" for i in range(index)),
        versions=VERSIONS,
        parent=json.dumps({"kernels": list(range(300)), "state": index}),
        parent_hash=f"h{index}",
        child=json.dumps({"kernels": list(range(300)), "state": index + 1}),
        child_hash=f"h{index + 1}",
        actions=("tile k0 to 128x128x64", "fuse k0 and k1", "stop"),
        actions_cut=3,
        action="fuse k0 and k1",
        policy="heuristic/1",
        probabilities=(0.25, 0.5, 0.25),
        source=source,
        candidate_key=content_hash(source),
        measure_key=key or f"m{index}",
        evaluation=evaluation or accepted(),
        seeds=(1, 2),
        hardware=H200,
        libraries=LIBRARIES,
        wall_s=2.5,
        created=1.0,
    )


def episode(updated: float = 1.0, state: str = "running", id: str = "e1", problem: str = "p1") -> Episode:
    return Episode(
        episode_id=id,
        run_id="r1",
        problem_key=problem,
        problem="softmax",
        policy="heuristic/1",
        coder="compiler",
        state=state,  # type: ignore[arg-type]
        baselines=Baselines(eager=Timing(samples_ms=(1.0, 2.0))),
        started=1.0,
        updated=updated,
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.sqlite")


def test_every_record_comes_back_equal(store: Store) -> None:
    run = RunInfo(run_id="r1", started=1.0, command="mtmc", flags={"steps": 8}, versions=VERSIONS, hardware=H200)
    judged = step(0, accepted())
    stopped = step(1).model_copy(update={"evaluation": None, "child": "", "child_hash": "", "action": "stop"})
    store.record_run(run)
    store.record_episode(episode())
    store.record_step(judged)
    store.record_step(stopped)
    store.close()
    again = Store.open(store.path)
    assert list(again.steps()) == [judged, stopped]
    assert list(again.runs()) == [run]
    assert list(again.episodes("p1")) == [episode()]


def test_not_a_number_and_infinity_survive(store: Store) -> None:
    store.record_step(step(0, wrong(), key="k"))
    (read,) = store.steps()
    assert read.evaluation is not None
    stats = read.evaluation.errors[0]
    assert math.isnan(stats.norm) and stats.worst == math.inf
    found = store.lookup("k")
    assert found is not None and found.outcome is Outcome.WRONG_RESULT


def test_steps_filter(store: Store) -> None:
    for index in range(3):
        store.record_step(step(index))
    store.record_step(step(0, episode="e2"))
    assert [s.index for s in store.steps(episode_id="e1")] == [0, 1, 2]
    assert [s.episode_id for s in store.steps(parent_hash="h0")] == ["e1", "e2"]
    assert list(store.steps(problem_key="other")) == []


def test_latest_row_of_an_episode_counts_whatever_order_it_came_in(store: Store) -> None:
    store.record_episode(episode(2.0, "finished"))
    store.record_episode(episode(1.0, "running"))
    store.record_episode(episode(3.0, id="e2", problem="p2"))
    assert [e.state for e in store.episodes("p1")] == ["finished"]
    assert [e.episode_id for e in store.episodes()] == ["e1", "e2"]


def test_lookup_answers_the_newest_lasting_verdict(store: Store) -> None:
    assert store.lookup("k") is None
    store.record_step(step(0, accepted(1.0), key="k"))
    store.record_measurement("k", accepted(2.0))
    store.record_measurement("k", Evaluation(outcome=Outcome.TIMEOUT, message="120 s"))
    found = store.lookup("k")
    assert found is not None and found.ms == accepted(2.0).ms


def test_lookup_ignores_steps_that_were_not_measured(store: Store) -> None:
    store.record_step(step(0, key="k").model_copy(update={"measured": False}))
    assert store.lookup("k") is None


def test_measure_key_depends_on_all_that_decides_the_result_and_nothing_else() -> None:
    def key(source="s", inputs="i", hardware=H200, libraries=LIBRARIES, judge="1", protocol=(("seeds", 3),)) -> str:  # type: ignore[no-untyped-def]
        return measure_key(source, inputs, hardware, libraries, judge, dict(protocol))

    changed = [
        key(source="t"),
        key(inputs="j"),
        key(hardware=None),
        key(hardware=H200.model_copy(update={"driver": "580"})),
        key(libraries=LIBRARIES | {"triton": "3.7.0"}),
        key(judge="2"),
        key(protocol=(("seeds", 4),)),
    ]
    assert len({key(), *changed}) == len(changed) + 1
    assert key() == key(libraries=LIBRARIES | {"mtmc": "0.2"})


def test_a_thousand_steps_stay_small(store: Store) -> None:
    with store.database.transaction():
        for index in range(1000):
            s = step(index % 20, episode=f"e{index // 20}")
            from mtmc.store.store import pack

            payload, texts = pack(s)
            for text in texts:
                store.database.put_text(text)
            store.insert_step(content_hash(payload), s, payload)
    assert store.info().steps == 1000
    assert store.info().texts < 20 * 3 + 20
    store.close()
    assert store.path.stat().st_size < 4 << 20


def _write(path: Path, worker: int, together: Barrier) -> None:
    together.wait()
    with Store.open(path) as store:
        for index in range(10):
            store.record_step(step(index, episode=f"w{worker}"))


def test_processes_write_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(4)
    workers = [context.Process(target=_write, args=(path, n, together)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    with Store.open(path) as store:
        assert store.info().steps == 40
        assert [s.index for s in store.steps(episode_id="w3")] == list(range(10))


def _die(path: Path) -> None:
    store = Store.open(path)
    store.record_step(step(0))
    store.database._connection.execute("BEGIN IMMEDIATE")
    store.database.insert("results", "k", "f", "p", "{}")
    os._exit(1)


def test_a_crash_keeps_what_was_recorded_and_nothing_half(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    process = multiprocessing.get_context("spawn").Process(target=_die, args=(path,))
    process.start()
    process.join(60)
    assert process.exitcode == 1
    with Store.open(path) as store:
        assert list(store.steps()) == [step(0)]
        assert store.results("f") == {}


def test_full_disk_is_one_sentence_and_loses_nothing(store: Store) -> None:
    store.record_step(step(0))
    pages = store.database.one("PRAGMA page_count")
    assert pages is not None
    store.database.one(f"PRAGMA max_page_count = {pages[0]}")
    with pytest.raises(StoreError, match="full; what was recorded before is safe"):
        for index in range(1, 50):
            store.record_step(step(index))
    kept = list(store.steps())
    assert kept[0] == step(0) and len(kept) < 50
    store.database.one("PRAGMA max_page_count = 100000")
    store.record_step(step(60))
    assert list(store.steps()) == [*kept, step(60)]


def test_unusable_files_are_store_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="can't be opened"):
        Store.open(tmp_path / "file" / "store.sqlite")
    (tmp_path / "bad.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match="is damaged"):
        Store.open(tmp_path / "bad.sqlite")
    with sqlite3.connect(tmp_path / "new.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer mtmc"):
        Store.open(tmp_path / "new.sqlite")


def fill(store: Store, steps: int = 30) -> None:
    store.record_run(RunInfo(run_id="r1", started=1.0, command="mtmc", versions=VERSIONS, hardware=H200))
    store.record_episode(episode())
    store.record_result("f1", "1_matmul", '{"b": 1, "a": 2}')
    for index in range(steps):
        store.record_step(step(index, wrong() if index % 7 == 3 else accepted(1 + index)))
    store.record_measurement("extra", accepted(9.0))


def test_shards_bring_everything_to_another_store_once(store: Store, tmp_path: Path) -> None:
    fill(store)
    limit = 12_000
    written = export(store, tmp_path / "out", max_bytes=limit)
    assert len(written.files) > 1 and written.too_large == 0
    assert all(file.stat().st_size <= limit for file in written.files)
    assert sum(file.stat().st_size for file in written.files) > 0.6 * limit * (len(written.files) - 1)

    other = Store.open(tmp_path / "other.sqlite")
    first = merge(other, [tmp_path / "out"])
    assert first.new == written.rows and first.known == 0 and first.new_steps == 30
    # repr: NaN is not equal to itself.
    assert sorted(map(repr, other.steps())) == sorted(map(repr, store.steps()))
    assert list(other.runs()) == list(store.runs())
    assert list(other.episodes()) == list(store.episodes())
    assert json.loads(other.results("f1")["1_matmul"]) == {"a": 2, "b": 1}
    assert other.lookup("extra") == accepted(9.0) and other.lookup("m5") == store.lookup("m5")

    again = merge(other, [*written.files])
    assert again.new == 0 and again.known == written.rows
    assert other.info()[1:-1] == store.info()[1:-1]


def test_each_shard_stands_alone(store: Store, tmp_path: Path) -> None:
    fill(store)
    files = export(store, tmp_path / "out", max_bytes=12_000).files
    other = Store.open(tmp_path / "other.sqlite")
    assert merge(other, [files[-2]]).new_steps == len(list(other.steps())) > 0


def test_a_text_is_in_a_shard_once(store: Store, tmp_path: Path) -> None:
    fill(store)
    (shard,) = export(store, tmp_path / "out").files
    kinds = [json.loads(line)["kind"] for line in gzip.open(shard, "rt")]
    assert kinds.count("blob") == store.info().texts and kinds.count("step") == 30


def test_exporting_again_replaces_this_stores_shards_only(store: Store, tmp_path: Path) -> None:
    fill(store)
    other = Store.open(tmp_path / "other.sqlite")
    other.record_step(step(99))
    (foreign,) = export(other, tmp_path / "out").files
    many = export(store, tmp_path / "out", max_bytes=12_000).files
    few = export(store, tmp_path / "out").files
    assert len(many) > len(few) == 1
    assert sorted((tmp_path / "out").iterdir()) == sorted([foreign, *few])


def test_a_bad_shard_changes_nothing(store: Store, tmp_path: Path) -> None:
    fill(store, 5)
    (shard,) = export(store, tmp_path / "out").files
    lines = gzip.open(shard, "rt").read().splitlines()
    other = Store.open(tmp_path / "other.sqlite")

    def refused(name: str, text: bytes, match: str) -> None:
        path = tmp_path / name
        path.write_bytes(text)
        with pytest.raises(StoreError, match=match):
            merge(other, [path])
        assert other.info().steps == other.info().runs == other.info().texts == 0

    refused("cut.jsonl.gz", shard.read_bytes()[:-200], "does not read")
    refused("text.jsonl.gz", b"hello", "does not read")
    without = [line for line in lines if '"state' not in line or '"kind":"step"' in line]
    assert len(without) < len(lines)
    refused("lack.jsonl.gz", gzip.compress("\n".join(without).encode()), "lacks a text")
    newer = lines[0].replace('"schema":1', '"schema":99')
    refused("newer.jsonl.gz", gzip.compress("\n".join([newer, *lines[1:]]).encode()), "newer mtmc")
    with pytest.raises(StoreError, match="does not exist"):
        merge(other, [tmp_path / "missing.jsonl.gz"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="holds no shard"):
        merge(other, [tmp_path / "empty"])


def test_parquet_table(store: Store, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    fill(store, 5)
    (file,) = export_parquet(store, tmp_path)
    table = parquet.read_table(file).to_pylist()
    assert [row["outcome"] for row in table] == ["accepted"] * 3 + ["wrong_result", "accepted"]
    assert table[0]["ms"] == pytest.approx(1.0095) and table[3]["ms"] is None
    assert table[2]["actions"][1] == "fuse k0 and k1" and json.loads(table[0]["versions"])["judge"] == "j1"

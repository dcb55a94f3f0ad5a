"""One set of resident children for all tests of a file: what the judge promises is that they survive anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mtmc.verify import JudgeOptions, WorkerPool


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool("cpu", JudgeOptions(forward_timeout_s=8, build_workers=1)) as made:
        made.start()
        for worker in (made.reference, made.candidate):
            worker.wait_ready()
        yield made

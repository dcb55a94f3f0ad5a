"""The processes of a judge: one for the reference, one for the candidate, some that compile. Reused over problems."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

from mtmc.data.candidate import KernelSignature
from mtmc.data.evaluation import KernelBuild
from mtmc.errors import JudgeError
from mtmc.log import get_logger
from mtmc.settings import get_settings
from mtmc.verify import device as devices
from mtmc.verify.options import JudgeOptions
from mtmc.verify.transport import shared_folder
from mtmc.verify.worker import Fault, Worker

log = get_logger("verify")

PROBE = {"dtype": "float32", "shape": [257], "stride": [1]}


class BuildFailed(Exception):
    """One kernel does not compile."""

    def __init__(self, kernel: str, text: str) -> None:
        super().__init__(f"kernel {kernel} does not compile: {text}")


class WorkerPool:
    """Long-lived children for one device. One problem and one candidate at a time; a context manager."""

    def __init__(self, device: str | None = None, options: JudgeOptions | None = None) -> None:
        self.device = devices.resolve(device)
        self.options = options or JudgeOptions()
        self.folder = shared_folder()
        cuda = devices.is_cuda(self.device)
        memory = 0 if cuda else _host_memory_limit()
        start = self.options.start_timeout_s
        interpreter = {"TRITON_INTERPRET": "0" if cuda else "1"}
        # The compile workers of several judges side by side must not fill the machine.
        common = {"TORCHINDUCTOR_COMPILE_THREADS": str(min(4, os.cpu_count() or 1))}
        self.reference = Worker(
            "reference", self.device, self.folder, environment=common | {"TRITON_INTERPRET": "0"}, start_timeout_s=start
        )
        self.candidate = Worker(
            "candidate", self.device, self.folder, environment=common | interpreter,
            memory_bytes=memory, start_timeout_s=start,
        )  # fmt: skip
        count = self.options.build_workers or get_settings().compile_workers or min(4, os.cpu_count() or 1)
        hidden = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}
        self.builders = [
            Worker("build", "cpu", self.folder, environment=hidden, start_timeout_s=start) for _ in range(count)
        ]
        self._ipc: bool | None = None
        self._candidate_starts = 0

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the children without waiting for them, so that they import torch while the parent works."""
        for worker in (self.reference, self.candidate, self.builders[0]):
            worker.start()

    def close(self) -> None:
        """End every child and delete the shared folder."""
        for worker in (self.reference, self.candidate, *self.builders):
            worker.close()
        if not get_settings().keep_files:
            shutil.rmtree(self.folder, ignore_errors=True)

    def ready_candidate(self) -> Worker:
        """The candidate's child with the transport set up; call it inside the card's lock."""
        if self._ipc is None:
            self._ipc = self.ipc_works()
            if not self._ipc and devices.is_cuda(self.device):
                log.warning("CUDA IPC does not work here: tensors travel through host memory, which is slower")
        self.candidate.start()
        if self._candidate_starts != self.candidate.starts:
            self.candidate.call("configure", self.options.start_timeout_s, ipc=self._ipc)
            self._candidate_starts = self.candidate.starts
        return self.candidate

    def ipc_works(self) -> bool:
        """Whether the two children can share device memory: both see one card, and a value written there arrives."""
        if not devices.is_cuda(self.device) or self.options.transport == "host":
            return False
        try:
            there = self.candidate.call("configure", self.options.start_timeout_s, ipc=True)["card"]
            here = self.reference.call("card", self.options.start_timeout_s)["card"]
            slots = self.candidate.call("allocate", 30, key="probe", metas=[PROBE])
            self.reference.call("write_probe", 30, slots=slots)
            arrived = self.candidate.call("read_probe", 30, key="probe")
        except (Fault, JudgeError) as problem:
            log.info("CUDA IPC: %s", problem)
            return False
        return there == here and arrived == sum(range(257))

    def build(self, source: str, signatures: Sequence[KernelSignature], capability: int) -> list[KernelBuild]:
        """Compile kernels side by side; equal ones once.

        Raises:
            BuildFailed: the first kernel that does not compile.
            Fault: the source does not load, or a compiler crashed or hung.
        """
        distinct: dict[KernelSignature, list[str]] = {}
        for s in signatures:
            distinct.setdefault(s.model_copy(update={"kernel": ""}), []).append(s.kernel)
        work = list(distinct)
        shards = [work[i :: len(self.builders)] for i in range(len(self.builders))]
        running = [(worker, shard) for worker, shard in zip(self.builders, shards, strict=True) if shard]
        rows: dict[KernelSignature, dict[str, Any]] = {}
        try:
            for worker, shard in running:
                dumped = [s.model_dump() for s in shard]
                worker.begin(
                    "build", source=source, signatures=dumped, capability=capability,
                    launchers=devices.is_cuda(self.device),
                )  # fmt: skip
            for worker, shard in running:
                rows |= zip(shard, worker.finish(self.options.build_timeout_s), strict=True)
        except BaseException:
            for worker, _ in running:
                worker.kill_if_busy()
            raise
        built = []
        for signature, kernels in distinct.items():
            if error := rows[signature]["error"]:
                raise BuildFailed(kernels[0], error)
            built += [KernelBuild(**rows[signature]["row"] | {"kernel": k}) for k in kernels]
        order = {s.kernel: i for i, s in enumerate(signatures)}
        return sorted(built, key=lambda b: order[b.kernel])


def _host_memory_limit() -> int:
    """Three quarters of the machine's memory: a memory hog is to die before the machine does."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.75)

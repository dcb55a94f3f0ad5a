"""A resident child process, seen from the parent: start, call with a time limit, replace after a fault.

The parent never shares a CUDA context or a Python object with a child; a crash, a hang or a sticky CUDA error costs one
process and is raised as a ``Fault``.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import mtmc
from mtmc.errors import JudgeError
from mtmc.log import get_logger
from mtmc.verify import messages

log = get_logger("verify")

Role = Literal["reference", "candidate", "build"]

ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "USER",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CC",
    "CXX",
)
ENVIRONMENT_PREFIXES = (
    "CUDA_",
    "NVIDIA_",
    "TRITON_",
    "TORCH",
    "PYTORCH_",
    "OMP_",
    "MKL_",
    "XDG_CACHE",
    "NCCL_",
    "NVSHMEM_",
)
"""What a child gets of the parent's environment; nothing else, so no tokens and no proxies."""

_alive: weakref.WeakSet[Worker] = weakref.WeakSet()


class Fault(Exception):
    """A call that gave no value. ``kind``: ``error`` (the code raised, the child lives on), ``oom``, ``sticky`` (CUDA
    context lost), ``crash`` or ``timeout`` (the last three cost the child its life)."""

    def __init__(
        self, kind: str, text: str, *, role: str = "", type_name: str = "", at: str = "", call: str = ""
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.role = role
        self.text = text
        self.type_name = type_name
        self.at = at
        self.call = call

    def sentence(self) -> str:
        """What happened, for people."""
        first = self.text.splitlines()[0] if self.text else self.kind
        what = f"{self.type_name}: {first}" if self.type_name else first
        return f"{what} ({self.at})" if self.at else what


class Worker:
    """One child. Not started before it is needed; started again by the next call after a fault."""

    def __init__(self, role: Role, device: str, folder: Path, *, environment: dict[str, str] | None = None,
                 memory_bytes: int = 0, start_timeout_s: float = 120.0) -> None:  # fmt: skip
        self.role = role
        self.device = device
        self.folder = folder
        self.starts = 0
        """How often a process was started: a caller that finds it changed must load everything again."""
        self.spent: defaultdict[str, float] = defaultdict(float)
        """Seconds waited for each method, to see where a judged step goes."""
        self._environment = environment or {}
        self._memory_bytes = memory_bytes
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._pending = b""
        self._number = 0
        self._busy = ""
        self._log = tempfile.TemporaryFile(dir=folder)
        _alive.add(self)

    def start(self) -> None:
        """Start the process if there is none; returns at once, ``call`` waits until it is ready."""
        if self._process is not None:
            return
        requests, self._to = os.pipe()
        self._from, replies = os.pipe()
        lifeline, self._lifeline = os.pipe()
        main_thread = threading.current_thread() is threading.main_thread()
        command = [sys.executable, "-P", "-m", "mtmc.verify.serve", self.role, self.device, str(self.folder),
                   str(requests), str(replies), str(lifeline), "main" if main_thread else "thread",
                   str(self._memory_bytes)]  # fmt: skip
        self._log.seek(0)
        self._log.truncate()
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                pass_fds=(requests, replies, lifeline), start_new_session=True, env=self._child_environment(),
                cwd=self.folder,
            )  # fmt: skip
        finally:
            for fd in (requests, replies, lifeline):
                os.close(fd)
        self.starts += 1
        self._ready = False
        self._pending = b""

    def call(self, method: str, timeout_s: float, **arguments: Any) -> Any:
        """Call ``method`` of the child's role object with JSON arguments and return its JSON value.

        Raises:
            Fault: the child raised, ran out of memory, died or took longer than ``timeout_s`` seconds.
        """
        self.begin(method, **arguments)
        return self.finish(timeout_s)

    def begin(self, method: str, **arguments: Any) -> None:
        """Send a request and do not wait: several workers can then work side by side. ``finish`` must follow."""
        self.wait_ready()
        self._number += 1
        self._busy = method
        try:
            self._send(messages.dumps({"id": self._number, "call": method, "with": arguments}))
        except BaseException:
            self.kill()
            raise

    def finish(self, timeout_s: float) -> Any:
        """The value of the request that was begun; see ``call``."""
        method = self._busy
        began = time.perf_counter()
        try:
            reply = self._receive(timeout_s, method)
        except BaseException:  # Ctrl-C too: a child in the middle of a call can't be talked to any more
            self.kill()
            raise
        self._busy = ""
        self.spent[method] += time.perf_counter() - began
        if reply.get("id") != self._number:
            self.kill()
            raise self._fault("crash", "the child answered out of turn", call=method)
        if "error" not in reply:
            return reply.get("value")
        error = reply["error"]
        if error["kind"] == "sticky":
            self.kill()
        raise self._fault(error["kind"], error["text"], type_name=error["type"], at=error["at"], call=method)

    def _fault(self, kind: str, text: str, **more: str) -> Fault:
        return Fault(kind, text, role=self.role, **more)

    def kill_if_busy(self) -> None:
        """End a child whose answer nobody will read."""
        if self._busy:
            self.kill()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def kill(self) -> None:
        """End the process and everything that it started."""
        process, self._process, self._busy = self._process, None, ""
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            log.debug("%s child %d was gone already", self.role, process.pid)
        process.wait()
        for fd in (self._to, self._from, self._lifeline):
            os.close(fd)
        for path in (*self.folder.glob(f"{process.pid}-*.bin"), *Path("/dev/shm").glob(f"torch_{process.pid}_*")):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        self.kill()
        self._log.close()
        _alive.discard(self)

    def wait_ready(self) -> None:
        """Start the process if need be, and wait until it has imported torch and answers."""
        self.start()
        if self._ready:
            return
        try:
            self._receive(self._start_timeout_s, "start")
        except Fault as fault:
            self.kill()
            raise JudgeError(f"The {self.role} process did not start: {fault.text}.") from fault
        except BaseException:
            self.kill()
            raise
        self._ready = True

    def _send(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except BrokenPipeError:
            raise self._fault("crash", self._last_words()) from None

    def _receive(self, timeout_s: float, method: str) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            readable = select.select([self._from], [], [], max(left, 0))[0] if left > 0 else []
            if not readable:
                raise self._fault("timeout", f"no answer within {timeout_s:g} s", call=method)
            chunk = os.read(self._from, 1 << 16)
            if not chunk or len(self._pending) > messages.MAX_LINE:
                raise self._fault("crash", self._last_words(), call=method)
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            return messages.loads(line)
        except ValueError:
            raise self._fault("crash", "the child sent something that is not an answer", call=method) from None

    def _last_words(self) -> str:
        """How the process ended, and the last lines that it wrote."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        if code is None:
            how = "the process closed its connection"
        elif code < 0:
            how = f"the process died of {signal.Signals(-code).name}"
        else:
            how = f"the process exited with code {code}"
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 2000))
        last = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f"{how}; last output: {last[-1]}" if last else how

    def _child_environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k in ENVIRONMENT or k.startswith(ENVIRONMENT_PREFIXES)}
        # CUDA IPC shares plain allocations only, so allocator settings such as expandable segments stay outside.
        kept = {k: v for k, v in kept.items() if not k.endswith("_ALLOC_CONF")}
        package = str(Path(mtmc.__file__).parent.parent)
        path = os.pathsep.join([package, *filter(None, [kept.get("PYTHONPATH")])])
        return kept | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | self._environment


@atexit.register
def _close_all() -> None:
    for worker in list(_alive):
        worker.kill()

"""The main loop of every child process: ``python -m mtmc.verify.serve ROLE DEVICE FOLDER REQUESTS REPLIES LIFELINE``.

Reads one JSON request a line, calls the method of that name on the role's object, answers with one line. The child dies
with its parent: by signal where the kernel offers it, and by a thread that waits on a pipe nobody writes to.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import sysconfig
import threading
import traceback
from pathlib import Path
from typing import Any

from mtmc.verify import messages

STICKY = (
    "CUDA error",
    "device-side assert",
    "illegal memory access",
    "unspecified launch failure",
    "CUBLAS_STATUS_EXEC",
)
"""Texts of errors after which a CUDA context is of no further use."""
PR_SET_PDEATHSIG = 1
LIBRARY = (str(Path(__file__).parent.parent), sysconfig.get_path("stdlib"), "<")
"""Where files are that are nobody's program: mtmc itself, Python's library, code without a file."""


def main(arguments: list[str]) -> None:
    role, device, folder, requests, replies, lifeline, with_thread, memory = arguments
    _die_with_parent(int(lifeline), signal_too=with_thread == "main")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if int(memory):
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
    # Importing the role imports torch, which costs seconds and is paid once a process.
    from mtmc.verify import roles

    served = roles.create(role, device, Path(folder))
    incoming = os.fdopen(int(requests), "rb", buffering=0)
    write = os.write
    reply_to = int(replies)

    def answer(message: dict[str, Any]) -> None:
        data = messages.dumps(message)
        while data:
            data = data[write(reply_to, data) :]

    answer({"ready": os.getpid()})
    for line in _lines(incoming):
        request = messages.loads(line)
        try:
            value = getattr(served, request["call"])(**request["with"])
            message = {"id": request["id"], "value": value}
        except BaseException as error:  # SystemExit included: a candidate may raise anything
            message = {"id": request["id"], "error": _described(error, request["call"])}
            del error
            gc.collect()
            _empty_cache()
        answer(message)


def _empty_cache() -> None:
    """What a failed call held must not stay reserved on the card."""
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _lines(stream: Any) -> Any:
    pending = b""
    while chunk := stream.read(1 << 16):
        pending += chunk
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            yield line


def _described(error: BaseException, call: str) -> dict[str, Any]:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in text:
        kind = "oom"
    elif isinstance(error, RuntimeError) and any(mark in text for mark in STICKY):
        kind = "sticky"
    else:
        kind = "error"
    frames = traceback.extract_tb(error.__traceback__)
    # The innermost frame in the candidate's or the problem's own file is where an engineer looks.
    own = [f for f in frames if not f.filename.startswith(LIBRARY) and "site-packages" not in f.filename]
    at = f"line {own[-1].lineno}: `{(own[-1].line or '').strip()}`" if own else ""
    described = {"kind": kind, "type": type(error).__name__, "text": text[:4000], "at": at, "call": call}
    traceback.clear_frames(error.__traceback__)  # frames pin tensors
    return described


def _die_with_parent(lifeline: int, signal_too: bool) -> None:
    def wait() -> None:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True, name="lifeline").start()
    if signal_too:  # the signal comes when the *thread* that started us ends, so only for the main one
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main(sys.argv[1:])

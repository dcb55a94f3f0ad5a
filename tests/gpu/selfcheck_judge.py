"""What the judge does on a real card, in about a minute: ``python tests/gpu/selfcheck_judge.py [OUT.json]``.

Not collected by pytest. Prints one line a check: transport, verdicts on good and bad candidates, a program against
itself, lock seconds.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from mtmc.data.candidate import Candidate, KernelSignature
from mtmc.problem import load_problem
from mtmc.verify import Judge, JudgeOptions, WorkerPool

ADD = """
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x, y):
        return torch.relu(x) * 2 + y
N = {n}
def get_inputs(): return [torch.randn(N), torch.randn(N)]
def get_init_inputs(): return []
"""

TRITON_ADD = """
import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def k0(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    a = tl.load(x + i, mask=m)
    b = tl.load(y + i, mask=m)
    tl.store(out + i, tl.maximum(a, 0.0) * 2 + b, mask=m)

class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        k0[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024, num_warps=4, num_stages=3)
        MARK
        return out
"""

MLP = """
import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.a = nn.Linear(f, f)
        self.bn = nn.BatchNorm1d(f)
        self.conv = nn.Conv1d(1, 4, 3)
    def forward(self, x):
        return self.conv(torch.relu(self.bn(self.a(x))).unsqueeze(1))
F = 2048
def get_inputs(): return [torch.rand(1024, F)]
def get_init_inputs(): return [F]
"""

SIGNATURE = KernelSignature(
    kernel="k0", function="k0", args=(("x", "*fp32"), ("y", "*fp32"), ("out", "*fp32"), ("n", "i32")),
    constexprs=(("BLOCK", 1024),), aligned=("x", "y", "out", "n"), num_warps=4, num_stages=3,
)  # fmt: skip


def triton_candidate(change: Callable[[str], str] = lambda s: s) -> Candidate:
    source = change(TRITON_ADD)
    marked = source.replace("MARK", '_mark("k0")')
    return Candidate(source=source.replace("        MARK\n", ""), signatures=(SIGNATURE,), marked_source=marked)


def changed(old: str, new: str) -> Candidate:
    return triton_candidate(lambda s: s.replace(old, new))


def itself(text: str) -> Candidate:
    return Candidate(source=text.replace("class Model(", "class ModelNew("))


def brief(e: Any) -> dict[str, Any]:
    return {
        "outcome": e.outcome, "message": e.message, "stage": e.stage, "flags": e.flags, "ms": e.ms,
        "eager_ms": e.reference_timing and e.reference_timing.median_ms,
        "compiled_ms": e.compiled_timing and e.compiled_timing.median_ms,
        "samples": e.timing and len(e.timing.samples_ms), "spread": e.timing and round(e.timing.spread, 4),
        "host_ms": e.timing and e.timing.host_ms, "kernels": [k.model_dump() for k in e.kernels],
        "builds": [b.model_dump() for b in e.builds],
        "judge_s": e.judge_s, "lock_s": e.gpu_lock_s, "build_s": e.build_s,
        "errors": [(x.input_set, x.output, x.norm, x.reference_norm, x.ok) for x in e.errors][:6],
    }  # fmt: skip


def used_gib() -> float:
    """Memory in use on the card, by whatever process."""
    import pynvml

    pynvml.nvmlInit()
    return round(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used / (1 << 30), 2)


def main() -> None:
    report: dict[str, Any] = {}
    started = time.perf_counter()

    def step(name: str, action: Callable[[], Any]) -> None:
        began = time.perf_counter()
        try:
            report[name] = action()
        except Exception as error:  # a self-check reports everything that goes wrong
            report[name] = {"exception": repr(error), "trace": traceback.format_exc()[-1500:]}
        report[name + "_wall_s"] = round(time.perf_counter() - began, 3)
        print(name, json.dumps(report[name], default=str)[:1500], report[name + "_wall_s"], flush=True)

    with WorkerPool(None, JudgeOptions(forward_timeout_s=8)) as pool:
        pool.start()
        for worker in (pool.reference, pool.candidate):
            worker.wait_ready()
        report["start_s"] = round(time.perf_counter() - started, 2)
        step("ipc", pool.ipc_works)
        with Judge(load_problem(ADD.format(n=1 << 26)), pool=pool) as judge:
            step("baselines", lambda: judge.baselines().model_dump(exclude={"eager": {"samples_ms"}}))
            step("triton", lambda: brief(judge.evaluate(triton_candidate(), floor_bytes=3 << 28)))
            step("triton_again", lambda: brief(judge.evaluate(triton_candidate())))
            step("triton_final", lambda: brief(judge.evaluate(triton_candidate(), final=True)))
            step("impossible", lambda: brief(judge.evaluate(triton_candidate(), floor_bytes=1 << 40)))
            step(
                "unwritten_tail",
                lambda: brief(judge.evaluate(changed("m = i < n", "m = i < n - 64"))),
            )
            step(
                "no_relu",
                lambda: brief(judge.evaluate(changed("tl.maximum(a, 0.0)", "a"))),
            )
            step(
                "bad_kernel",
                lambda: brief(judge.evaluate(changed("tl.arange(0, BLOCK)", "tl.arange(0, 1000)"))),
            )
            step(
                "illegal_access",
                lambda: brief(judge.evaluate(changed("out + i,", "out + i + 17179869184,"))),
            )
            step("after_fault", lambda: brief(judge.evaluate(triton_candidate())))
            oom = ADD.format(n=1 << 26).replace("return", "z = torch.empty(1 << 41, device=x.device); return", 1)
            step("oom", lambda: brief(judge.evaluate(itself(oom))))
            step("half", lambda: brief(judge.evaluate(itself(ADD.format(n=1 << 26).replace("+ y", "+ y.half()")))))
            loop = TRITON_ADD.replace("        MARK\n", "        while True: out = out + 0\n")
            step("hang", lambda: brief(judge.evaluate(Candidate(source=loop))))
        for size in (1 << 20, 1 << 28):
            with Judge(load_problem(ADD.format(n=size)), pool=pool) as judge:
                ratios = []

                def against_itself(judge: Judge = judge, ratios: list[float] = ratios, size: int = size) -> Any:
                    for _ in range(5):
                        e = judge.evaluate(itself(ADD.format(n=size)), final=True)
                        assert e.speedup is not None, e.message
                        ratios.append(round(e.speedup, 4))
                    return {"ratios": ratios, "last": brief(e)}

                step(f"itself_{size}", against_itself)
        with Judge(load_problem(MLP), pool=pool) as judge:
            step("mlp_baselines", lambda: judge.baselines().model_dump())
            step("mlp", lambda: brief(judge.evaluate(itself(MLP), final=True)))
            stateless = "torch.nn.functional.batch_norm(self.a(x), None, None, self.bn.weight, self.bn.bias, True)"
            broken = MLP.replace("self.bn(self.a(x))", stateless)
            step("mlp_no_state", lambda: brief(judge.evaluate(itself(broken))))
        with Judge(load_problem(ADD.format(n=1 << 30)), pool=pool, options=JudgeOptions(shared_card=True)) as judge:
            for worker in (pool.reference, pool.candidate):
                worker.spent.clear()
            step(
                "large_baselines", lambda: judge.baselines().model_dump(exclude={"eager", "compiled", "eager_reduced"})
            )
            step("large", lambda: brief(judge.evaluate(triton_candidate())))
            step("large_again", lambda: brief(judge.evaluate(triton_candidate())))
            step("large_final", lambda: brief(judge.evaluate(triton_candidate(), final=True)))
            step("large_held_GiB", used_gib)
            step("large_spent", lambda: {w.role: dict(w.spent) for w in (pool.reference, pool.candidate)})
    with WorkerPool(None, JudgeOptions(transport="host")) as pool, Judge(load_problem(MLP), pool=pool) as judge:
        step("host_transport", lambda: brief(judge.evaluate(itself(MLP))))
    report["total_s"] = round(time.perf_counter() - started, 2)
    text = json.dumps(report, default=str, indent=1)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            file.write(text)
    print("total", report["total_s"])


if __name__ == "__main__":
    main()

"""What a GPU can do: enough for a roofline, without torch and without creating a CUDA context."""

from __future__ import annotations

from typing import Any, Literal

from mtmc.data.record import Record
from mtmc.settings import visible_gpu

Arithmetic = Literal["fp32", "fp16", "bf16", "tf32", "fp64", "split_fp16"]
"""The units that do the work. ``split_fp16``: fp32-accurate products of split operands on tensor cores."""

SPLIT_PRODUCTS = 4
"""Tensor-core products a split-fp16 contraction costs, splitting included (200 of 790 TFLOP/s on an H200)."""


class Hardware(Record):
    """One GPU. Rates are what good kernels reach, not the data sheet, unless the name says peak."""

    name: str
    """As NVML and torch call it, such as ``NVIDIA H200``."""
    capability: tuple[int, int]
    """Compute capability: major, minor."""
    sms: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes_per_block: int
    """Largest dynamic shared memory that one thread block may ask for."""
    bandwidth_Bps: float
    """Achievable device memory bandwidth, bytes per second."""
    peak_bandwidth_Bps: float
    """Data sheet bandwidth, bytes per second: nothing that reads its inputs can be faster."""
    fp32_flops: float
    """CUDA-core fp32, floating-point operations per second (a multiply-add is two)."""
    fp16_flops: float
    """Dense fp16 or bf16 on the tensor cores with fp32 accumulation."""
    tf32_flops: float
    fp64_flops: float
    launch_us: float = 2.5
    """Device microseconds that one more kernel costs even if it does nothing (start, drain, gap)."""
    driver: str = ""
    """Driver version; empty for a GPU that is not in this machine."""
    cuda: str = ""
    """CUDA version of the driver, such as ``13.0``; empty for a GPU that is not in this machine."""
    estimated: bool = False
    """True where NVML does not know the rates and they were computed from clocks and bus width."""

    @property
    def target(self) -> str:
        """Compiler target, such as ``sm_90``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    @property
    def present(self) -> bool:
        """True for a GPU of this machine, False for an entry of the table."""
        return self.driver != ""

    def flops(self, kind: Arithmetic = "fp32") -> float:
        """Operations per second of ``kind``."""
        rates: dict[Arithmetic, float] = {
            "fp32": self.fp32_flops,
            "fp16": self.fp16_flops,
            "bf16": self.fp16_flops,
            "tf32": self.tf32_flops,
            "fp64": self.fp64_flops,
            "split_fp16": self.fp16_flops / SPLIT_PRODUCTS,
        }
        return rates[kind]

    def memory_ms(self, nbytes: float) -> float:
        """Milliseconds to move ``nbytes`` to or from device memory."""
        return nbytes / self.bandwidth_Bps * 1e3

    def compute_ms(self, flops: float, kind: Arithmetic = "fp32") -> float:
        """Milliseconds for ``flops`` operations of ``kind``."""
        return flops / self.flops(kind) * 1e3

    def roofline_ms(self, nbytes: float, flops: float, kind: Arithmetic = "fp32", launches: int = 1) -> float:
        """Estimated ms: the slower of memory and arithmetic, plus the launches (Williams et al., 2009)."""
        return max(self.memory_ms(nbytes), self.compute_ms(flops, kind)) + launches * self.launch_us * 1e-3

    def bound(self, nbytes: float, flops: float, kind: Arithmetic = "fp32") -> Literal["memory", "compute", "launch"]:
        """What limits a kernel of this size."""
        memory, compute = self.memory_ms(nbytes), self.compute_ms(flops, kind)
        if max(memory, compute) < self.launch_us * 1e-3:
            return "launch"
        return "memory" if memory >= compute else "compute"


GiB = 1 << 30
MiB = 1 << 20


def _gpu(
    name: str,
    capability: tuple[int, int],
    sms: int,
    memory: float,
    l2: float,
    bandwidth: tuple[float, float],
    tflops: tuple[float, float, float, float],
) -> Hardware:
    """A table row: GiB, MiB, TB/s (achievable, peak) and TFLOP/s of fp32, fp16, tf32, fp64."""
    fp32, fp16, tf32, fp64 = (t * 1e12 for t in tflops)
    return Hardware(
        name=name,
        capability=capability,
        sms=sms,
        memory_bytes=int(memory * GiB),
        l2_bytes=int(l2 * MiB),
        shared_bytes_per_block=_SHARED[capability],
        bandwidth_Bps=bandwidth[0] * 1e12,
        peak_bandwidth_Bps=bandwidth[1] * 1e12,
        fp32_flops=fp32,
        fp16_flops=fp16,
        tf32_flops=tf32,
        fp64_flops=fp64,
    )


# Shared memory that a block may opt into: CUDA C++ programming guide, table of compute capabilities.
_SHARED = {
    (7, 5): 64 << 10,
    (8, 0): 163 << 10,
    (8, 6): 99 << 10,
    (8, 9): 99 << 10,
    (9, 0): 227 << 10,
    (10, 0): 227 << 10,
    (12, 0): 99 << 10,
}

H200 = _gpu("NVIDIA H200", (9, 0), 132, 140.4, 60, (4.3, 4.8), (67, 790, 400, 34))
"""The estimate's target on machines without a GPU."""

# Achievable rates: H200 measured; the others are data sheet values times the shares that the H200 reaches.
GPUS: tuple[Hardware, ...] = (
    H200,
    _gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 79.6, 50, (3.0, 3.35), (67, 790, 400, 34)),
    _gpu("NVIDIA H100 PCIe", (9, 0), 114, 79.6, 50, (1.8, 2.04), (51, 600, 300, 26)),
    _gpu("NVIDIA H100 NVL", (9, 0), 132, 93.6, 50, (3.5, 3.94), (60, 670, 340, 30)),
    _gpu("NVIDIA GH200 480GB", (9, 0), 132, 95.6, 50, (3.6, 4.0), (67, 790, 400, 34)),
    _gpu("NVIDIA H20", (9, 0), 78, 95.6, 60, (3.6, 4.0), (44, 130, 65, 1)),
    _gpu("NVIDIA B200", (10, 0), 148, 178.4, 126, (7.1, 8.0), (75, 1700, 850, 37)),
    _gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 79.3, 40, (1.8, 2.04), (19.5, 260, 130, 9.7)),
    _gpu("NVIDIA A100-SXM4-40GB", (8, 0), 108, 39.4, 40, (1.4, 1.56), (19.5, 260, 130, 9.7)),
    _gpu("NVIDIA A100 80GB PCIe", (8, 0), 108, 79.3, 40, (1.7, 1.94), (19.5, 240, 120, 9.7)),
    _gpu("NVIDIA A100-PCIE-40GB", (8, 0), 108, 39.4, 40, (1.4, 1.56), (19.5, 240, 120, 9.7)),
    _gpu("NVIDIA A10G", (8, 6), 80, 22.1, 6, (0.52, 0.6), (31, 60, 30, 0.5)),
    _gpu("NVIDIA A10", (8, 6), 72, 22.1, 6, (0.52, 0.6), (31, 110, 55, 0.5)),
    _gpu("NVIDIA GeForce RTX 3090", (8, 6), 82, 23.7, 6, (0.83, 0.94), (36, 70, 35, 0.6)),
    _gpu("NVIDIA L40S", (8, 9), 142, 44.4, 96, (0.76, 0.86), (92, 290, 145, 1.4)),
    _gpu("NVIDIA L4", (8, 9), 58, 22.0, 48, (0.26, 0.3), (30, 95, 48, 0.5)),
    _gpu("NVIDIA RTX 6000 Ada Generation", (8, 9), 142, 47.5, 96, (0.84, 0.96), (91, 290, 145, 1.4)),
    _gpu("NVIDIA GeForce RTX 4090", (8, 9), 128, 23.5, 72, (0.9, 1.01), (83, 160, 80, 1.3)),
    _gpu("NVIDIA GeForce RTX 5090", (12, 0), 170, 31.4, 96, (1.6, 1.79), (105, 205, 100, 1.6)),
)


def known(name: str) -> Hardware | None:
    """The table's entry for a GPU's full name, or None."""
    return next((gpu for gpu in GPUS if gpu.name.lower() == name.lower()), None)


def detect(index: int = 0) -> Hardware | None:
    """The ``index``-th CUDA device of this machine, by NVML; None without a GPU or driver.

    A GPU outside the table gets rates computed from its clocks, cores and memory bus (``estimated``).
    """
    import pynvml

    visible = visible_gpu(index)
    if visible is None:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        if visible.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(visible))
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(visible)
        version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        name = str(pynvml.nvmlDeviceGetName(handle))
        base = known(name) or _from_clocks(pynvml, handle, name)
        return base.model_copy(
            update={
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                "driver": str(pynvml.nvmlSystemGetDriverVersion()),
                "cuda": f"{version // 1000}.{version % 1000 // 10}",
            }
        )
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _from_clocks(nvml: Any, handle: Any, name: str) -> Hardware:
    """Rates from NVML's counts, at the H200's shares of peak: 0.9 of memory, 0.8 of tensor cores."""
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    cores = nvml.nvmlDeviceGetNumGpuCores(handle)
    # Cores a SM: 64 on Turing and GA100, 128 since. Tensor multiply-adds a core and clock: data sheets.
    per_sm = 64 if (major, minor) in ((7, 5), (8, 0)) else 128
    tensor = {(7, 5): 8, (8, 0): 16, (9, 0): 16, (10, 0): 32}.get((major, minor), 4)
    clock = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6
    memory_clock = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6
    peak_bandwidth = 2 * memory_clock * nvml.nvmlDeviceGetMemoryBusWidth(handle) / 8
    fp32 = 2 * cores * clock
    return Hardware(
        name=name,
        capability=(major, minor),
        sms=cores // per_sm,
        memory_bytes=0,
        l2_bytes=(40 if minor == 0 else 6) * MiB,
        shared_bytes_per_block=_SHARED.get((major, minor), 99 << 10),
        bandwidth_Bps=0.9 * peak_bandwidth,
        peak_bandwidth_Bps=peak_bandwidth,
        fp32_flops=fp32,
        fp16_flops=0.8 * tensor * fp32,
        tf32_flops=0.4 * tensor * fp32,
        fp64_flops=fp32 / (2 if minor == 0 and major > 7 else 64),
        estimated=True,
    )

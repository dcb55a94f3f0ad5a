"""The roofline, the table of GPUs, and detection through a stand-in for NVML."""

from __future__ import annotations

import types

import pytest

from mtmc.data.hardware import GPUS, H200, Hardware, detect, known


def test_a_copy_is_bound_by_memory() -> None:
    nbytes = 4.3e9
    assert H200.bound(nbytes, flops=1e6) == "memory"
    assert H200.roofline_ms(nbytes, 1e6) == pytest.approx(1.0 + H200.launch_us * 1e-3)
    assert H200.roofline_ms(nbytes, 1e6, launches=0) == pytest.approx(1.0)


def test_a_square_matmul_is_bound_by_arithmetic_and_split_operands_help() -> None:
    nbytes, flops = 3 * 4096**2 * 4, 2 * 4096**3
    assert H200.bound(nbytes, flops, "fp32") == "compute"
    fp32, split = H200.roofline_ms(nbytes, flops, "fp32"), H200.roofline_ms(nbytes, flops, "split_fp16")
    assert fp32 == pytest.approx(2.05, rel=0.02)
    assert 2.8 < fp32 / split < 3.1


def test_a_tiny_kernel_is_bound_by_its_launch() -> None:
    assert H200.bound(4096, 1024) == "launch"
    assert H200.roofline_ms(0, 0, launches=3) == pytest.approx(3 * H200.launch_us * 1e-3)


def test_records_round_trip() -> None:
    assert Hardware.model_validate_json(H200.model_dump_json()) == H200
    assert H200.target == "sm_90" and not H200.present


def test_the_table_is_consistent() -> None:
    assert len({gpu.name for gpu in GPUS}) == len(GPUS)
    for gpu in GPUS:
        assert 0.8 < gpu.bandwidth_Bps / gpu.peak_bandwidth_Bps < 0.95, gpu.name
        assert gpu.fp64_flops < gpu.fp32_flops < gpu.fp16_flops and gpu.tf32_flops < gpu.fp16_flops, gpu.name
    assert known("nvidia h200") is H200 and known("NVIDIA H2000") is None


class FakeNvml(types.ModuleType):
    """Answers like a machine with one RTX 2080 Ti (which the table lacks) and one H200."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index > 1:
            raise self.NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return {"GPU-a": 0, "GPU-b": 1}[uuid]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return ("NVIDIA GeForce RTX 2080 Ti", "NVIDIA H200")[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(total=(11 << 30, 150_754_820_096)[handle])

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.03"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13000

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return ((7, 5), (9, 0))[handle]

    def nvmlDeviceGetNumGpuCores(self, handle: int) -> int:
        return 4352

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        return {self.NVML_CLOCK_SM: 1545, self.NVML_CLOCK_MEM: 7000}[kind]

    def nvmlDeviceGetMemoryBusWidth(self, handle: int) -> int:
        return 352


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", FakeNvml("pynvml"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_known_gpu_is_detected(nvml: None) -> None:
    gpu = detect(1)
    assert gpu is not None and gpu.present
    assert (gpu.driver, gpu.cuda, gpu.memory_bytes) == ("580.159.03", "13.0", 150_754_820_096)
    assert gpu.bandwidth_Bps == H200.bandwidth_Bps and not gpu.estimated


def test_cuda_visible_devices_renumbers(nvml: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    gpu = detect(0)
    assert gpu is not None and gpu.name == "NVIDIA H200"
    assert detect(1) is None


def test_an_unknown_gpu_gets_rates_from_its_clocks(nvml: None) -> None:
    gpu = detect(0)
    assert gpu is not None and gpu.estimated and gpu.sms == 68
    assert gpu.peak_bandwidth_Bps == pytest.approx(616e9)
    assert gpu.fp32_flops == pytest.approx(13.4e12, rel=0.01)


def test_no_gpu_is_none(nvml: None) -> None:
    assert detect(2) is None

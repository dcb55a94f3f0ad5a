"""Element types."""

from __future__ import annotations

from enum import StrEnum


class DType(StrEnum):
    """Element type of a buffer; the value is PyTorch's name."""

    F64 = "float64"
    F32 = "float32"
    BF16 = "bfloat16"
    F16 = "float16"
    I64 = "int64"
    I32 = "int32"
    I16 = "int16"
    I8 = "int8"
    U8 = "uint8"
    BOOL = "bool"

    @property
    def bytes(self) -> int:
        return _BYTES[self]

    @property
    def is_float(self) -> bool:
        return self in (DType.F64, DType.F32, DType.BF16, DType.F16)

    @property
    def is_integer(self) -> bool:
        return not self.is_float and self is not DType.BOOL

    @property
    def compute(self) -> DType:
        """The type that kernels compute in: half types widen to float32, small integers to int32."""
        if self in (DType.BF16, DType.F16):
            return DType.F32
        return DType.I32 if self in (DType.I16, DType.I8, DType.U8) else self


_BYTES = {
    DType.F64: 8, DType.F32: 4, DType.BF16: 2, DType.F16: 2, DType.I64: 8,
    DType.I32: 4, DType.I16: 2, DType.I8: 1, DType.U8: 1, DType.BOOL: 1,
}  # fmt: skip

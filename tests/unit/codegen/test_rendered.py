"""The text of a dozen kernels, and what holds for all of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.codegen.kernels import KERNELS, text_of


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name: str, golden: Any) -> None:
    golden(name, text_of(KERNELS[name]()))

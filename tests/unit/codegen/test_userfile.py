"""The user's file around a new forward: everything but ``forward`` stays."""

from __future__ import annotations

import ast

import pytest

from mtmc.codegen.userfile import UserFile
from mtmc.errors import CodegenError

SOURCE = '''"""A small model."""
from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor

WIDTH = 8


def widen(x):
    return x * 2


class Block(nn.Module):
    def forward(self, x):
        return widen(x)


class Model(nn.Module):
    """Doubles.  Model is the reference."""

    scale: float = 1.0

    def __init__(self, width: int = WIDTH):
        super(Model, self).__init__()
        self.fc = nn.Linear(width, width)  # a comment
        self.block = Block()

    @staticmethod
    def make() -> Model:
        return Model(WIDTH)

    @torch.no_grad()
    def forward(self, x: Tensor, target: Tensor | None = None, *, alpha: float = 1.0) -> Tensor:
        return self.fc(self.block(x)) * alpha

    def extra_repr(self):
        return "extra"


def get_inputs():
    return [torch.randn(2, WIDTH)]


def get_init_inputs():
    return [WIDTH]


if __name__ == "__main__":
    print(Model())
'''
FORWARD = "def forward(self, x):\n    return kernel(x)\n"


def rendered(
    source: str = SOURCE, prelude: str = "import torch\nimport triton\n\n\ndef kernel(x):\n    return x\n"
) -> str:
    return UserFile.parse(source).render(prelude, FORWARD)


def test_signature() -> None:
    user = UserFile.parse(SOURCE)
    assert user.arguments == ("x", "target", "alpha")
    assert user.signature == (
        "def forward(self, x: Tensor, target: Tensor | None = None, *, alpha: float = 1.0) -> Tensor:"
    )


def test_everything_but_forward_stays() -> None:
    text = rendered()
    for kept in (
        "from __future__ import annotations", "import torch.nn as nn", "from torch import Tensor", "WIDTH = 8",
        "def widen(x):", "class Block(nn.Module):", "self.fc = nn.Linear(width, width)  # a comment",
        "scale: float = 1.0", "def extra_repr(self):", '"""A small model."""',
    ):  # fmt: skip
        assert kept in text, text
    assert "self.block(x)" not in text and "@torch.no_grad()" not in text
    assert text.count("    def forward(self, x):\n        return kernel(x)") == 1


def test_the_new_file_runs() -> None:
    compile(rendered(), "new.py", "exec")
    assert text_before(rendered(), "def kernel(x):", "class ModelNew"), "kernels stand above the class"


def text_before(text: str, first: str, second: str) -> bool:
    return 0 <= text.index(first) < text.index(second)


def test_model_is_renamed_everywhere() -> None:
    names = {node.id for node in ast.walk(ast.parse(rendered())) if isinstance(node, ast.Name)}
    assert "Model" not in names and "ModelNew" in names
    assert "super(ModelNew, self).__init__()" in rendered() and "-> ModelNew:" in rendered()


def test_inputs_and_the_main_block_are_dropped() -> None:
    text = rendered()
    assert "get_inputs" not in text and "get_init_inputs" not in text and "__main__" not in text


def test_imports_are_not_repeated() -> None:
    assert [line for line in rendered().splitlines() if line == "import torch"] == ["import torch"]
    assert rendered().count("import triton") == 1


def test_two_spaces_and_tabs() -> None:
    for indent in ("  ", "\t"):
        text = rendered(SOURCE.replace("    ", indent))
        compile(text, "new.py", "exec")


def test_a_header_and_future_imports() -> None:
    """A docstring ahead of the user's own one leaves ``from __future__`` where Python wants it."""
    compile('"""Generated."""\n\n' + rendered(), "new.py", "exec")


@pytest.mark.parametrize("parameters", ["self, *args", "self, x, **kwargs"])
def test_open_signatures_are_refused(parameters: str) -> None:
    source = f"class Model:\n    def forward({parameters}):\n        return 1\n"
    with pytest.raises(CodegenError, match="name its arguments"):
        UserFile.parse(source)


def test_a_forward_of_its_own() -> None:
    source = "class Base:\n    def forward(self, x):\n        return x\n\n\nclass Model(Base):\n    width = 3\n"
    with pytest.raises(CodegenError, match="no forward of its own"):
        UserFile.parse(source)
    with pytest.raises(CodegenError, match="no class Model"):
        UserFile.parse("x = 1\n")

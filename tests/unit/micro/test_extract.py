from __future__ import annotations

import pytest

from mtmc.errors import CoderError
from mtmc.micro.extract import extract_code, find_function

GOOD = "def k0(x, out):\n    out.copy_(x)\n"


def fenced(code: str, language: str = "python") -> str:
    return f"I would do this.\n\n```{language}\n{code}```\nDone."


def test_takes_the_last_python_block() -> None:
    answer = fenced("def draft(x, out):\n    return\n") + "\nBetter:\n" + fenced(GOOD) + fenced("ls -l\n", "bash")
    assert extract_code(answer) == GOOD


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("I cannot do that.", "holds no code"),
        ("", "holds no code"),
        ("```python\ndef k0(x, out):\n    out.copy_(", "cut off"),
        (fenced("def k0(x, out)\n    pass\n"), "does not parse at its line 1"),
        (fenced("ls\n", "bash"), "holds no code"),
    ],
)
def test_a_malformed_answer_is_one_sentence(answer: str, says: str) -> None:
    with pytest.raises(CoderError, match=says):
        extract_code(answer)


def test_finds_the_function_over_the_buffers() -> None:
    code = "@triton.jit\ndef kernel(x, out, n):\n    pass\n\n"
    code += "def helper(a):\n    pass\n\ndef launch(x, out):\n    pass\n"
    assert find_function(code, "k0", 2) == "launch"
    assert find_function(code + "\ndef k0(x, out):\n    pass\ndef later(x):\n    pass\n", "k0", 2) == "k0"
    assert find_function("def k0(*buffers):\n    pass\n", "k0", 7) == "k0"
    assert find_function("def k0(x, out, block=128):\n    pass\n", "k0", 2) == "k0"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("@triton.jit\ndef k0(x, out):\n    pass\n", "no function k0"),
        ("x = 1\n", "no function k0"),
        ("def k0(x):\n    pass\n", "takes 1 arguments but the kernel has 2"),
        ("def k0(x, y, out):\n    pass\n", "takes 3 arguments but the kernel has 2"),
        ("def k0(x, out, *, block):\n    pass\n", "keyword arguments"),
    ],
)
def test_a_function_that_cannot_take_the_buffers_is_refused(code: str, says: str) -> None:
    with pytest.raises(CoderError, match=says):
        find_function(code, "k0", 2)

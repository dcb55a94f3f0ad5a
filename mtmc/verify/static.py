"""Rules on the candidate's syntax tree: one function a rule, each with its rationale and severity.

Names are resolved through imports and plain aliases (``import torch as t``, ``from torch import compile as c``,
``mm = torch.compile``), so that a rule speaks of what is called and not of how it is spelled.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Check = Callable[["Source"], Iterator[tuple[ast.AST, str]]]


@dataclass(frozen=True)
class Rule:
    """One thing that a candidate may not do, or that a reader should know."""

    name: str
    severity: Literal["reject", "flag"]
    why: str
    check: Check


@dataclass(frozen=True)
class Finding:
    rule: Rule
    line: int
    text: str

    def sentence(self) -> str:
        return f"line {self.line}: {self.text}; {self.rule.why} (rule {self.rule.name})"


RULES: list[Rule] = []


def rule(severity: Literal["reject", "flag"], why: str) -> Callable[[Check], Check]:
    """Register a check under its function's name."""

    def register(check: Check) -> Check:
        RULES.append(Rule(check.__name__.replace("_", "-"), severity, why, check))
        return check

    return register


class Source:
    """A parsed candidate with its names resolved."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.aliases: dict[str, str] = {}
        for node in ast.walk(self.tree):
            match node:
                case ast.Import():
                    for a in node.names:
                        self.aliases[a.asname or a.name.partition(".")[0]] = (
                            a.name if a.asname else a.name.partition(".")[0]
                        )
                case ast.ImportFrom(module=str(module)):
                    for a in node.names:
                        self.aliases[a.asname or a.name] = f"{module}.{a.name}"
        for node in ast.walk(self.tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() | ast.Name() as value):
                    if (known := self.dotted(value)) and known.partition(".")[0] in ("torch", "time", "triton"):
                        self.aliases[name] = known

    def dotted(self, node: ast.AST) -> str:
        """``torch.cuda.Stream`` for whatever expression means it; empty for anything that is not a dotted name."""
        match node:
            case ast.Name(id=name):
                return self.aliases.get(name, name)
            case ast.Attribute(value=value, attr=attr):
                base = self.dotted(value)
                return f"{base}.{attr}" if base else ""
            case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(attr)), *_]):
                base = self.dotted(value)
                return f"{base}.{attr}" if base else ""
        return ""

    def imports(self) -> Iterator[tuple[ast.AST, str]]:
        for node in ast.walk(self.tree):
            match node:
                case ast.Import():
                    yield from ((node, a.name) for a in node.names)
                case ast.ImportFrom(module=str(module)):
                    yield node, module

    def used(self) -> Iterator[tuple[ast.AST, str]]:
        """Every dotted name that is read anywhere."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute | ast.Name | ast.Call) and (name := self.dotted(node)):
                yield node, name


def find(text: str) -> list[Finding]:
    """What the rules say about a source, in order of lines.

    Raises:
        SyntaxError: the source does not parse.
    """
    source = Source(text)
    found = [Finding(r, getattr(node, "lineno", 0), what) for r in RULES for node, what in r.check(source)]
    return sorted(found, key=lambda f: f.line)


def _imports_of(source: Source, *names: str) -> Iterator[tuple[ast.AST, str]]:
    for node, module in source.imports():
        if module.partition(".")[0] in names or module in names:
            yield node, f"imports {module}"


@rule("reject", "a fallback hides a kernel that does not work")
def no_try_in_functions(source: Source) -> Iterator[tuple[ast.AST, str]]:
    for function in ast.walk(source.tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Try | ast.TryStar):
                    yield node, f"try in {function.name}"


@rule("reject", "that is the baseline, not a kernel of the candidate's own")
def no_torch_compile(source: Source) -> Iterator[tuple[ast.AST, str]]:
    for node, name in source.used():
        if name in ("torch.compile", "torch.jit.script", "torch.jit.trace") or name.startswith("torch._inductor."):
            yield node, f"uses {name}"


@rule("reject", "work on another stream is not seen by the clock")
def no_streams(source: Source) -> Iterator[tuple[ast.AST, str]]:
    for node, name in source.used():
        if name in ("torch.cuda.Stream", "torch.cuda.stream", "torch.cuda.ExternalStream", "torch.cuda.set_stream",
                    "torch.Stream"):  # fmt: skip
            yield node, f"uses {name}"


@rule("reject", "work in a thread or another process escapes the clock and the limits")
def no_threads(source: Source) -> Iterator[tuple[ast.AST, str]]:
    yield from _imports_of(
        source,
        "threading",
        "_thread",
        "multiprocessing",
        "concurrent",
        "subprocess",
        "asyncio",
        "torch.multiprocessing",
    )


@rule("reject", "a candidate may not change the library that it is measured with")
def no_patching(source: Source) -> Iterator[tuple[ast.AST, str]]:
    owners = ("torch", "time", "triton", "builtins", "sys", "math", "numpy")
    for node in ast.walk(source.tree):
        match node:
            case ast.Assign(targets=targets):
                written = [t for t in targets if isinstance(t, ast.Attribute)]
            case ast.AugAssign(target=ast.Attribute() as target) | ast.AnnAssign(target=ast.Attribute() as target):
                written = [target]
            case ast.Call(func=ast.Name(id="setattr"), args=[owner, *_]):
                name = source.dotted(owner)
                if name.partition(".")[0] in owners:
                    yield node, f"setattr on {name}"
                continue
            case _:
                continue
        for target in written:
            name = source.dotted(target)
            if name.partition(".")[0] in owners:
                yield node, f"assigns {name}"


@rule("reject", "the result must run where mtmc is not installed, and nothing of the judge is a candidate's business")
def no_mtmc(source: Source) -> Iterator[tuple[ast.AST, str]]:
    yield from _imports_of(source, "mtmc")


@rule("reject", "looking into other frames or objects is not computing")
def no_inspection(source: Source) -> Iterator[tuple[ast.AST, str]]:
    yield from _imports_of(source, "inspect", "gc", "ctypes", "linecache")
    for node, name in source.used():
        if name in ("sys._getframe", "sys._current_frames", "sys.modules", "globals", "__builtins__"):
            yield node, f"uses {name}"


@rule("reject", "a forward has no business with files, other programs or the network")
def no_files_or_network(source: Source) -> Iterator[tuple[ast.AST, str]]:
    yield from _imports_of(
        source, "socket", "urllib", "requests", "http", "shutil", "pathlib", "tempfile", "os", "mmap"
    )
    for node, name in source.used():
        if name in ("open", "eval", "exec", "__import__"):
            yield node, f"uses {name}"

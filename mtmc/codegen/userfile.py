"""The user's own file, kept as it is: imports, helpers and the constructor stay verbatim, ``Model`` becomes
``ModelNew`` and only its ``forward`` changes."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from mtmc.errors import CodegenError

_DROPPED = ("get_inputs", "get_init_inputs")


@dataclass(frozen=True)
class UserFile:
    """``arguments``: names of forward's parameters after self, in order. ``before``: the file above the class;
    ``render`` puts a new forward in."""

    tree: cst.Module
    arguments: tuple[str, ...]
    signature: str

    @staticmethod
    def parse(source: str, entry: str = "Model") -> UserFile:
        """Raises CodegenError where the file has no such class, or the class has no forward of its own."""
        tree = cst.parse_module(source)
        for statement in tree.body:
            if isinstance(statement, cst.ClassDef) and statement.name.value == entry:
                for member in statement.body.body:
                    if isinstance(member, cst.FunctionDef) and member.name.value == "forward":
                        return UserFile(tree, _arguments(member), _signature(member))
                raise CodegenError(f"class {entry} has no forward of its own; define it in the class")
        raise CodegenError(f"the file defines no class {entry}")

    def render(self, prelude: str, forward: str, entry: str = "Model", new_entry: str = "ModelNew") -> str:
        """The whole new file's text. ``prelude`` (kernels) goes after the imports; ``forward`` is a complete
        ``def forward(...)`` at column 0."""
        renamed = self.tree.visit(_Rename(entry, new_entry))
        assert isinstance(renamed, cst.Module)
        head: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = []
        rest: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = []
        for statement in renamed.body:
            if _is_dropped(statement):
                continue
            if isinstance(statement, cst.ClassDef) and statement.name.value == new_entry:
                statement = _with_forward(statement, forward)
            (head if _is_import(statement) and not rest else rest).append(statement)
        head.sort(
            key=lambda statement: not _is_future(statement)
        )  # ahead of the user's docstring, which follows another
        imports = cst.Module(body=head).code.strip()
        known = set(imports.splitlines())
        prelude = "\n".join(line for line in prelude.splitlines() if not (line.startswith("import ") and line in known))
        body = cst.Module(body=rest).code.strip()
        return f"{imports}\n{prelude}\n\n{body}\n"


class _Rename(cst.CSTTransformer):
    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        return updated_node.with_changes(value=self.new) if updated_node.value == self.old else updated_node


def _with_forward(node: cst.ClassDef, forward: str) -> cst.ClassDef:
    new = cst.parse_statement(forward)
    members = [
        new if isinstance(member, cst.FunctionDef) and member.name.value == "forward" else member
        for member in node.body.body
    ]
    members = [
        member.with_changes(leading_lines=[cst.EmptyLine(indent=False)]) if member is new else member
        for member in members
    ]
    return node.with_changes(body=node.body.with_changes(body=members))


def _arguments(function: cst.FunctionDef) -> tuple[str, ...]:
    params = function.params
    if isinstance(params.star_arg, cst.Param) or params.star_kwarg is not None:  # a bare * is a ParamStar
        raise CodegenError("forward takes *args or **kwargs; name its arguments")
    return tuple(param.name.value for param in [*params.posonly_params, *params.params, *params.kwonly_params])[1:]


def _signature(function: cst.FunctionDef) -> str:
    text = cst.Module(body=[]).code_for_node(function.params)
    returns = f" -> {cst.Module(body=[]).code_for_node(function.returns.annotation)}" if function.returns else ""
    return f"def forward({text}){returns}:"


def _is_import(node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.SimpleStatementLine):
        return False
    return all(isinstance(part, cst.Import | cst.ImportFrom) or _is_docstring(part) for part in node.body)


def _is_future(node: cst.CSTNode) -> bool:
    parts = node.body if isinstance(node, cst.SimpleStatementLine) else ()
    names = [part.module for part in parts if isinstance(part, cst.ImportFrom)]
    return any(isinstance(name, cst.Name) and name.value == "__future__" for name in names)


def _is_docstring(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString | cst.ConcatenatedString)


def _is_dropped(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.FunctionDef):
        return node.name.value in _DROPPED
    return isinstance(node, cst.If) and "__name__" in cst.Module(body=[]).code_for_node(node.test)

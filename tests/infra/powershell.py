"""Reads PowerShell as far as the tests need it.

Parameters, commands, and what stands around them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tree_sitter_powershell
from tree_sitter import Language, Node, Parser

_PARSER = Parser(Language(tree_sitter_powershell.language()))


class Parameter(NamedTuple):
    """A parameter of a script or function."""

    name: str
    kind: str
    mandatory: bool
    default: str | None


class Script:
    """One file, or one function in it."""

    def __init__(self, node: Node, name: str) -> None:
        self.node, self.name = node, name

    @property
    def text(self) -> str:
        return text(self.node)

    def errors(self) -> list[str]:
        return [f"line {each.start_point.row + 1}" for each in walk(self.node) if each.is_error or each.is_missing]

    def functions(self) -> list[Script]:
        return [Script(each, text(found(each, "function_name"))) for each in walk(self.node, "function_statement")]

    def parameters(self) -> dict[str, Parameter]:
        block = next(walk(self.node, "param_block"), None)
        parameters = walk(block, "script_parameter") if block else iter(())
        return {one.name: one for one in map(_parameter, parameters)}

    def attribute(self, name: str) -> str:
        """Return the arguments of an attribute (as CmdletBinding) of the script or function."""
        block = found(self.node, "param_block")
        for each in walk(found(block, "attribute_list"), "attribute"):
            if text(each).startswith(f"[{name}"):
                return text(each)
        return ""

    def commands(self) -> Iterator[Node]:
        return walk(self.node, "command")

    def help(self) -> str:
        return text(next(each for each in walk(self.node, "comment") if text(each).startswith("<#")))


def read(path: Path) -> Script:
    return Script(_PARSER.parse(path.read_bytes()).root_node, path.name)


def text(node: Node) -> str:
    return (node.text or b"").decode()


def walk(node: Node, kind: str | None = None) -> Iterator[Node]:
    if kind is None or node.type == kind:
        yield node
    for child in node.children:
        yield from walk(child, kind)


def found(node: Node, kind: str) -> Node:
    return next(walk(node, kind))


def command_name(command: Node) -> str:
    return text(found(command, "command_name")) if any(walk(command, "command_name")) else text(command)


def given(command: Node) -> set[str]:
    """Return the names of the parameters that a command is called with.

    Those of a splatted table are not seen.
    """
    elements = [each for each in command.children if each.type == "command_elements"]
    return {
        text(each).removeprefix("-").rstrip(":")
        for element in elements
        for each in element.children
        if each.type == "command_parameter"
    }


def splats(command: Node) -> bool:
    return re.search(r"(?<![\w'\"])@\w+", text(command)) is not None


def asks_first(command: Node) -> bool:
    """Whether a command runs only where ShouldProcess said yes."""
    node: Node | None = command
    while node is not None:
        parent = node.parent
        if parent is not None and parent.type in {"if_statement", "elseif_clause"} and node.type == "statement_block":
            condition = next(child for child in parent.children if child.type == "pipeline")
            if "$PSCmdlet.ShouldProcess(" in text(condition):
                return True
        node = parent
    return False


def _parameter(node: Node) -> Parameter:
    attributes = [text(each) for each in walk(node, "attribute")]
    kinds = [each for each in attributes if re.fullmatch(r"\[[\w.]+(\[\])?\]", each)]
    default = next(walk(node, "script_parameter_default"), None)
    return Parameter(
        text(next(child for child in node.children if child.type == "variable")).removeprefix("$"),
        kinds[-1].strip("[").removesuffix("]") if kinds else "",
        any(re.match(r"\[Parameter\([^)]*\bMandatory\b", each) for each in attributes),
        None if default is None else text(default).lstrip("= ").strip(),
    )

# SPDX-License-Identifier: Apache-2.0
"""Finds the function that a fault changes in the source of its module, and changes it there. Nothing is imported."""

import ast
import textwrap
from collections.abc import Iterable

from mytests.fuzz.faults.fault import Edit

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parted(place: str) -> tuple[str, list[str]]:
    """The module of a place, and the names that lead to the function."""
    module, _, names = place.partition(":")
    return module, names.split(".")


def function_in(text: str, place: str) -> Function:
    """The function of a ``place`` in the source of its module; raises a `LookupError` unless there is exactly one."""
    body: list[ast.stmt] = ast.parse(text).body
    *owners, name = parted(place)[1]
    for owner in owners:
        body = [item for node in body if isinstance(node, ast.ClassDef) and node.name == owner for item in node.body]
    found = [node for node in body if isinstance(node, Function) and node.name == name]
    if len(found) != 1:
        raise LookupError(f"{place}: {len(found)} functions have this name")
    return found[0]


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The source of a module with ``edits``, all of them of one function.

    Raises:
        LookupError: the function does not exist, or does not have exactly once what is to be replaced.
    """
    for edit in edits:
        text = _edited(text, edit)
    return text


def _edited(text: str, edit: Edit) -> str:
    function = function_in(text, edit.place)
    lines = text.splitlines(keepends=True)
    first = function.body[0] if not edit.old else function
    start, end = first.lineno - 1, function.end_lineno
    own = "".join(lines[start:end])
    if not edit.old:
        changed = textwrap.indent(textwrap.dedent(edit.new), " " * first.col_offset) + "\n"
    elif own.count(edit.old) == 1:
        changed = own.replace(edit.old, edit.new)
    else:
        raise LookupError(f"{edit.place} has {own.count(edit.old)} times {edit.old!r}")
    return "".join([*lines[:start], changed, *lines[end:]])

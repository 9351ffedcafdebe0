# SPDX-License-Identifier: Apache-2.0
"""Plants a fault in the running process: a function gets other code, wherever it was imported. No file is touched."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from mytests.fuzz.faults import FAULTS, Edit


@contextmanager
def planted(name: str) -> Iterator[None]:
    """A context in which the engine has the fault of this name."""
    with changed(FAULTS[name]):
        yield


@contextmanager
def changed(edit: Edit) -> Iterator[None]:
    """A context in which the function does something else; raises a `LookupError` if it cannot."""
    module_name, _, qualified_name = edit.place.partition(":")
    module, names = importlib.import_module(module_name), qualified_name.split(".")
    function = _function_in(module, names)
    path = Path(str(module.__file__))
    text, line = _edited(path.read_text(), names, edit)
    before, function.__code__ = function.__code__, _compiled(text, path, names, line)
    try:
        yield
    finally:
        function.__code__ = before


def _function_in(module: Any, names: list[str]) -> FunctionType:
    found = module
    for name in names:
        found = inspect.getattr_static(found, name)
    found = found.fget if isinstance(found, property) else found
    found = inspect.unwrap(getattr(found, "__func__", found))  # type: ignore[arg-type]
    assert isinstance(found, FunctionType), f"{names} is no function of Python"
    return found


def _compiled(text: str, path: Path, names: list[str], line: int) -> CodeType:
    # Only the whole module is compiled as it was: with ``__future__``, and with what ``super()`` needs.
    code = compile(text, path, "exec", dont_inherit=True)
    for name in names:
        found = [each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name]
        code = found[0] if len(found) == 1 else next(each for each in found if each.co_firstlineno == line)
    return code


def _edited(text: str, names: list[str], edit: Edit) -> tuple[str, int]:
    """The source of a module with an edit, and the function's line in it."""
    function = _definition(text, names, edit)
    first = function if edit.old else function.body[0]
    lines = text.splitlines(keepends=True)
    start, end = first.lineno - 1, function.end_lineno
    own = "".join(lines[start:end])
    if not edit.old:
        new = textwrap.indent(textwrap.dedent(edit.new), " " * first.col_offset) + "\n"
    elif own.count(edit.old) == 1:
        new = own.replace(edit.old, edit.new)
    else:
        raise LookupError(f"{edit.place} has {own.count(edit.old)} times {edit.old!r}")
    return "".join([*lines[:start], new, *lines[end:]]), function.lineno


def _definition(text: str, names: list[str], edit: Edit) -> ast.FunctionDef | ast.AsyncFunctionDef:
    body: list[ast.stmt] = ast.parse(text).body
    *owners, name = names
    for owner in owners:
        body = [item for node in body if isinstance(node, ast.ClassDef) and node.name == owner for item in node.body]
    found = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name]
    if len(found) != 1:
        raise LookupError(f"{edit.place}: {len(found)} functions have this name")
    return found[0]

# SPDX-License-Identifier: Apache-2.0
"""What the fields of `SpecialKwargs` mean, as their docstrings say it: for ``--help`` and the documentation."""

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import get_args

from sequence_hooks.config import choices
from sequence_hooks.config.special_kwargs import SpecialKwargs, TreeLimits


@dataclass(frozen=True)
class FieldDoc:
    """One field."""

    name: str
    kind: str
    """Its type, or the words that it may be."""

    default: str
    meaning: str


@cache
def field_docs() -> tuple[FieldDoc, ...]:
    """All fields: those of `SpecialKwargs`, and then the limits, each in their order."""
    defaults = {field.name: repr(field.default) for field in dataclasses.fields(SpecialKwargs)}
    said = [each for owner in (SpecialKwargs, TreeLimits) for each in _said_of(owner)]
    return tuple(FieldDoc(name, kind, defaults[name], meaning) for name, kind, meaning in said)


def _said_of(owner: type) -> Iterator[tuple[str, str, str]]:
    """The name, the type and the docstring of each field that a class itself defines."""
    (definition,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(definition, ast.ClassDef)
    for each, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and isinstance(after, ast.Expr):
            assert isinstance(after.value, ast.Constant)
            yield each.target.id, _kind(each.annotation), " ".join(str(after.value.value).split())


def help_text() -> str:
    """For ``--help``: how the fields are given, and what each of them means."""
    fields = " ".join(f"{each.name} ({each.kind}; default {each.default}): {each.meaning}" for each in field_docs())
    return (
        "Sequence hooks: a JSON object of fields of SpecialKwargs, @FILE with one, or --special-kwargs.FIELD VALUE for "
        f"each. Without it they are off. {fields}"
    ).replace("%", "%%")


def _kind(annotation: ast.expr) -> str:
    """A type as a user writes its values: all words that are allowed, if it is a choice of words."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        annotation = annotation.slice.elts[0]
    kind = ast.unparse(annotation)
    is_choice = hasattr(choices, kind)
    return " | ".join(map(repr, get_args(getattr(choices, kind)))) if is_choice else kind

# SPDX-License-Identifier: Apache-2.0
"""What the fields of `SpecialKwargs` mean, as their docstrings say it: for ``--help`` and the documentation."""

import ast
import dataclasses
import inspect
from dataclasses import dataclass
from functools import cache
from typing import get_args

from sequence_hooks.config import choices
from sequence_hooks.config.special_kwargs import SpecialKwargs


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
    """All fields, in their order."""
    (definition,) = ast.parse(inspect.getsource(SpecialKwargs)).body
    assert isinstance(definition, ast.ClassDef)
    kinds, said = {}, {}
    for each, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and isinstance(after, ast.Expr):
            assert isinstance(after.value, ast.Constant)
            kinds[each.target.id] = _kind(ast.unparse(each.annotation))
            said[each.target.id] = " ".join(str(after.value.value).split())
    names = [(field.name, repr(field.default)) for field in dataclasses.fields(SpecialKwargs)]
    return tuple(FieldDoc(name, kinds[name], default, said[name]) for name, default in names)


def help_text() -> str:
    """For ``--help``: how the fields are given, and what each of them means."""
    fields = " ".join(f"{each.name} ({each.kind}; default {each.default}): {each.meaning}" for each in field_docs())
    return (
        "Sequence hooks: a JSON object of fields of SpecialKwargs, @FILE with one, or --special-kwargs.FIELD VALUE for "
        f"each. Without it they are off. {fields}"
    ).replace("%", "%%")


def _kind(annotation: str) -> str:
    """A type as a user writes its values: the words that it has, if it is one of several."""
    is_choice = hasattr(choices, annotation)
    return " | ".join(map(repr, get_args(getattr(choices, annotation)))) if is_choice else annotation

# SPDX-License-Identifier: Apache-2.0
"""The classes of a package, read and never imported: what a class inherits, and what else its code names.

vLLM's models cannot all be imported: some need a kind of GPU, others a package that only their images need.
"""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple


class Definition(NamedTuple):
    """Something that a module defines at its top level."""

    module: str
    name: str


class Module:
    """A module's definitions and imports, wherever in it they are."""

    def __init__(self, name: str, path: Path) -> None:
        self._package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self._tree = ast.parse(path.read_text())

    @cached_property
    def definitions(self) -> dict[str, ast.AST]:
        """What is defined at the top level, or under a condition there."""
        return dict(_defined(self._tree.body))

    @cached_property
    def imports(self) -> dict[str, list[Definition]]:
        """What each name may stand for."""
        found = defaultdict(list)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom):
                for each in node.names:
                    found[each.asname or each.name].append(Definition(self._absolute(node), each.name))
        return found

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self._package.split(".")
        return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _defined(body: Iterable[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        elif isinstance(node, ast.If | ast.Try):
            yield from _defined([*node.body, *node.orelse])


class ClassGraph:
    """The definitions of the package in a folder, as far as modules whose names begin in one of some ways have them."""

    def __init__(self, folder: Path, within: tuple[str, ...]) -> None:
        self._root = folder.parent
        self._within = within
        self._modules: dict[str, Module | None] = {}
        self._found: dict[Definition, tuple[Definition, ...]] = {}
        self._words: dict[Definition, frozenset[str]] = {}
        self._named: dict[Definition, frozenset[Definition]] = {}

    def node(self, definition: Definition) -> ast.AST:
        """The code of a definition that `find` has given."""
        module = self._module(definition.module)
        assert module is not None
        return module.definitions[definition.name]

    def find(self, definition: Definition) -> tuple[Definition, ...]:
        """What a name in a module stands for: several definitions if devices have different ones, none if not ours."""
        if definition not in self._found:
            # Modules may import a name from each other.
            self._found[definition] = ()
            module = self._module(definition.module)
            if module is not None and definition.name in module.definitions:
                self._found[definition] = (definition,)
            elif module is not None:
                found = [each for source in module.imports.get(definition.name, ()) for each in self.find(source)]
                self._found[definition] = tuple(dict.fromkeys(found))
        return self._found[definition]

    def ancestors(self, definition: Definition) -> Iterator[Definition]:
        """A class and those that it inherits, nearest first; an alias has those of its class."""
        yield definition
        node = self.node(definition)
        bases = node.bases if isinstance(node, ast.ClassDef) else [node] if isinstance(node, ast.Name) else []
        for name in (each.id for base in bases for each in ast.walk(base) if isinstance(each, ast.Name)):
            for found in self.find(Definition(definition.module, name)):
                yield from self.ancestors(found)

    def attribute(self, definition: Definition, name: str) -> ast.AST | None:
        """The code of a class's attribute or method, its own or inherited; None if there is none."""
        for each in self.ancestors(definition):
            node = self.node(each)
            own = dict(_defined(node.body)) if isinstance(node, ast.ClassDef) else {}
            if name in own:
                return own[name]
        return None

    def words(self, definition: Definition) -> frozenset[str]:
        """The names of variables, attributes and arguments in the code of a definition."""
        if definition not in self._words:
            self._words[definition] = words_in(self.node(definition))
        return self._words[definition]

    def named_by(self, definition: Definition) -> frozenset[Definition]:
        """The definitions that the code of one names."""
        if definition not in self._named:
            found = (self.find(Definition(definition.module, word)) for word in self.words(definition))
            self._named[definition] = frozenset(each for several in found for each in several)
        return self._named[definition]

    def reached(
        self, starts: Iterable[Definition], following: Callable[[Definition], Iterable[Definition]]
    ) -> set[Definition]:
        """All that ``following`` leads to from some definitions, themselves included."""
        seen: set[Definition] = set()
        waiting = list(starts)
        while waiting:
            each = waiting.pop()
            if each not in seen:
                seen.add(each)
                waiting += following(each)
        return seen

    def _module(self, name: str) -> Module | None:
        if name not in self._modules:
            path = self._root.joinpath(*name.split("."))
            paths = [path.with_suffix(".py"), path / "__init__.py"] if name.startswith(self._within) else []
            self._modules[name] = next((Module(name, each) for each in paths if each.exists()), None)
        return self._modules[name]


def words_in(code: ast.AST) -> frozenset[str]:
    """The names of variables, attributes and arguments."""
    return frozenset(word for node in ast.walk(code) if (word := _word(node)) is not None)


def _word(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.arg if isinstance(node, ast.keyword) else None

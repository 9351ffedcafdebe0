# SPDX-License-Identifier: Apache-2.0
"""How many of the recipes in vLLM's source archive hooks start with, by the architectures of their models.

python -m build_tools.recipes FOLDER

FOLDER is the unpacked archive of a release that has recipes/, 0.33 or later. A recipe has no field for an
architecture: that is looked up in the archive's own tables of models, in its documentation and its tests, then in the
recipe's text, and then among the models of the tables that have the longest beginning of its name: these may be others,
and count where hooks do the same with all of them. Nothing is started.
"""

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from build_tools.architectures import DRAFT, NAMED, REFUSED, Class, class_of
from build_tools.model_classes import Models

_MODEL = re.compile(r"[\w.-]+/[\w.-]+")
_LEFT_OUT = (
    *("--no-enable-prefix-caching", "--no-enable-chunked-prefill", "--kv-transfer-config"),
    *("--pipeline-parallel-size", "--decode-context-parallel-size"),
    *("--speculative-config", "--speculative_config"),
)
"""Arguments with which an engine with hooks does not start."""

_FRONT_END = "the front end in Rust"


@dataclass(frozen=True)
class Recipe:
    """One of the files in recipes/models."""

    model: str
    left_out: frozenset[str]
    """What it has by default that hooks need to be left out."""

    words: frozenset[str]
    """Those of its text."""


def recipes(folder: Path) -> Iterator[Recipe]:
    """Those of a source archive, with what is on unless an operator switches it off."""
    for path in sorted((folder / "recipes" / "models").rglob("*.yaml")):
        text = path.read_text()
        fields: dict[str, Any] = import_module("yaml").safe_load(text)
        model, optional = fields["model"], fields.get("opt_in_features") or ()
        features = fields.get("features") or {}
        arguments = list(model.get("base_args") or ())
        arguments += fields.get("variants", {}).get("default", {}).get("extra_args") or ()
        arguments += [each for name in features if name not in optional for each in features[name].get("args") or ()]
        left_out = {name for name in _LEFT_OUT for each in arguments if str(each).startswith(name)}
        environment = model.get("base_env") or {}
        if model.get("default_frontend") == "rust" or str(environment.get("VLLM_USE_RUST_FRONTEND")) == "1":
            left_out.add(_FRONT_END)
        yield Recipe(model["model_id"], frozenset(left_out), frozenset(re.findall(r"\w+", text)))


def architectures_of_models(folder: Path, known: Sequence[str]) -> Mapping[str, set[str]]:
    """The architectures in the registry that the archive's tables name beside a model, by its name in lower case."""
    found: dict[str, set[str]] = defaultdict(set)
    rows = [line for page in (folder / "docs" / "models").rglob("*.md") for line in page.read_text().splitlines()]
    for row in (line for line in rows if line.startswith("|")):
        _note(found, set(re.findall(r"\w+", row)).intersection(known), _MODEL.findall(row))
    for node in ast.walk(ast.parse((folder / "tests" / "models" / "registry.py").read_text())):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in known:
                    texts = [str(each.value) for each in ast.walk(value) if isinstance(each, ast.Constant)]
                    _note(found, {str(key.value)}, [text for text in texts if _MODEL.fullmatch(text)])
    return found


def _note(found: dict[str, set[str]], architectures: set[str], models: Sequence[str]) -> None:
    for model in models:
        found[model.lower()] |= architectures


class Sources:
    """What an archive says about its recipes' architectures."""

    def __init__(self, folder: Path) -> None:
        classes = {each.name: class_of(each) for each in Models(folder / "vllm").architectures()}
        # Beside a draft model tables name the model that it drafts for.
        self._classes = {name: each for name, each in classes.items() if each is not DRAFT}
        named = architectures_of_models(folder, list(self._classes))
        self._named = {model: self._sorted(names) for model, names in named.items() if names}

    def of(self, recipe: Recipe) -> tuple[str, Sequence[Class]]:
        """Who tells a recipe's architecture, and what hooks do with it, or may do: the best first."""
        name = recipe.model.lower()
        if name in self._named:
            return "tables", self._named[name]
        if found := self._sorted(recipe.words):
            return "their own texts", found
        return "names that begin the same", self._of_family(name)

    def _of_family(self, name: str) -> Sequence[Class]:
        parts = name.split("-")
        for length in range(len(parts), 0, -1):
            beginning = "-".join(parts[:length])
            found = [names for model, names in self._named.items() if f"{model}-".startswith(f"{beginning}-")]
            if found:
                alike = len({_is_refused(names[0]) for names in found}) == 1
                return found[0] if alike else ()
        return ()

    def _sorted(self, names: Iterable[str]) -> Sequence[Class]:
        return sorted((self._classes[name] for name in sorted(names) if name in self._classes), key=_from_best)


def report(folder: Path) -> str:
    """What the command prints."""
    sources = Sources(folder)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    lines, unknown = [], []
    for recipe in recipes(folder):
        source, found = sources.of(recipe)
        if not found:
            unknown.append(recipe.model)
        elif _is_refused(found[0]):
            counts[source]["refused"] += 1
            lines.append(f"refused: {recipe.model}: {found[0].title}")
        elif recipe.left_out:
            counts[source]["would start if something is left out"] += 1
            lines.append(f"without {', '.join(sorted(recipe.left_out))}: {recipe.model}")
        else:
            counts[source]["would start as it is"] += 1
    for source, of_source in sorted(counts.items(), key=lambda item: -item[1].total()):
        lines.append(f"{of_source.total()} by {source}")
        lines += [f"{count:>4} {what}" for what, count in of_source.most_common()]
    total = sum(of_source.total() for of_source in counts.values())
    return "\n".join([*lines, f"{len(unknown)} unknown: {', '.join(unknown)}", f"{total + len(unknown)} recipes"])


def _is_refused(each: Class) -> bool:
    return each.hooks.startswith(REFUSED)


def _from_best(each: Class) -> int:
    return 2 if _is_refused(each) else int(each is NAMED)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the counts, and the recipes that do not start as they are."""
    parser = argparse.ArgumentParser(prog="python -m build_tools.recipes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    print(report(parser.parse_args(arguments).folder))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""How many of the recipes in vLLM's source archive hooks start with, by the architectures of their models.

python -m build_tools.recipes FOLDER

FOLDER is the unpacked archive of a release that has recipes/, 0.33 or later. A recipe names a model and no
architecture: that is looked up in the archive's own tables of models, in its documentation and its tests. Nothing is
started.
"""

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
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


def recipes(folder: Path) -> Iterator[Recipe]:
    """Those of a source archive, with what is on unless an operator switches it off."""
    for path in sorted((folder / "recipes" / "models").rglob("*.yaml")):
        fields: dict[str, Any] = import_module("yaml").safe_load(path.read_text())
        model, optional = fields["model"], fields.get("opt_in_features") or ()
        features = fields.get("features") or {}
        arguments = list(model.get("base_args") or ())
        arguments += fields.get("variants", {}).get("default", {}).get("extra_args") or ()
        arguments += [each for name in features if name not in optional for each in features[name].get("args") or ()]
        left_out = {name for name in _LEFT_OUT for each in arguments if str(each).startswith(name)}
        environment = model.get("base_env") or {}
        if model.get("default_frontend") == "rust" or str(environment.get("VLLM_USE_RUST_FRONTEND")) == "1":
            left_out.add(_FRONT_END)
        yield Recipe(model["model_id"], frozenset(left_out))


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


def report(folder: Path) -> str:
    """What the command prints."""
    classes = {each.name: class_of(each) for each in Models(folder / "vllm").architectures()}
    # Beside a draft model tables name the model that it drafts for.
    classes = {name: each for name, each in classes.items() if each is not DRAFT}
    named = architectures_of_models(folder, list(classes))
    counts: Counter[str] = Counter()
    unknown, lines = [], []
    for recipe in recipes(folder):
        found = sorted((classes[name] for name in sorted(named.get(recipe.model.lower(), ()))), key=_from_best)
        if not found:
            counts["no table of the archive names its architecture"] += 1
            unknown.append(recipe.model)
        elif found[0].hooks.startswith(REFUSED):
            counts["refused"] += 1
            lines.append(f"refused: {recipe.model}: {found[0].title}")
        elif recipe.left_out:
            counts["would start if something is left out"] += 1
            lines.append(f"without {', '.join(sorted(recipe.left_out))}: {recipe.model}")
        else:
            counts["would start as it is"] += 1
            counts[f"  {found[0].title}"] += 1
    head = [f"{counts.total() - sum(counts[key] for key in counts if key.startswith(' '))} recipes"]
    head += [
        f"{count:>4} {what}" for what, count in sorted(counts.items(), key=lambda item: (item[0][0] == " ", -item[1]))
    ]
    return "\n".join([*head, *lines, f"unknown: {', '.join(unknown)}"])


def _from_best(each: Class) -> int:
    return 2 if each.hooks.startswith(REFUSED) else int(each is NAMED)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the counts, and the recipes that do not start as they are."""
    parser = argparse.ArgumentParser(prog="python -m build_tools.recipes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    print(report(parser.parse_args(arguments).folder))


if __name__ == "__main__":
    main()

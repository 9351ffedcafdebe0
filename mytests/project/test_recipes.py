# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.recipes``: with how many of the recipes of a source archive of vLLM hooks start."""

from pathlib import Path

import pytest

from build_tools.recipes import main

REGISTRY = """
_TEXT_GENERATION_MODELS = {"TextForCausalLM": ("text", "Text")}
_EMBEDDING_MODELS = {"TextModel": ("text", "Pooled")}
_SPECULATIVE_DECODING_MODELS = {"TextMTP": ("text", "Draft")}
_VLLM_MODELS = {**_TEXT_GENERATION_MODELS, **_EMBEDDING_MODELS, **_SPECULATIVE_DECODING_MODELS}
"""
MODELS = """
from vllm.model_executor.layers.attention import Attention

class Text:
    def __init__(self): self.layer = Attention()
    def compute_logits(self): ...

class Pooled: ...

class Draft(Text): ...
"""
LAYER = """
from vllm.v1.kv_cache_interface import FullAttentionSpec

class Attention:
    def get_kv_cache_spec(self): return FullAttentionSpec()
"""
TESTED = (
    """{"TextForCausalLM": _Info("org/Tested", 1), "TextMTP": _Info("org/Drafted"), "TextModel": _Info("org/Pooled")}"""
)
FILES = {
    "vllm/model_executor/models/registry.py": REGISTRY,
    "vllm/model_executor/models/text.py": MODELS,
    "vllm/model_executor/layers/attention.py": LAYER,
    "vllm/v1/kv_cache_interface.py": "class FullAttentionSpec: ...",
    "docs/models/supported_models.md": "| `TextForCausalLM` | Text | `org/Listed-8B`, `org/Listed-1B` |",
    "tests/models/registry.py": TESTED,
}
RECIPES = {
    "org/Listed-1B": "",
    "org/Listed-8B": "  base_args: [--no-enable-prefix-caching]",
    "org/Tested": "  default_frontend: rust",
    "org/Drafted": "",
    "org/Pooled": "",
    "org/Told": "meta:\n  description: It is served as TextForCausalLM.",
    "org/Listed-2B": "",
    "org/Listed-1B-Chat": "",
    "other/Listed-1B": "",
}


def archive(folder: Path) -> Path:
    """One with a model of each kind, and recipes."""
    recipes = {f"recipes/models/{name}.yaml": f"model:\n  model_id: {name}\n{more}\n" for name, more in RECIPES.items()}
    for name, text in {**FILES, **recipes}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_each_recipe_is_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its model's architecture, whoever names it, and by what it has on."""
    main([str(archive(tmp_path))])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "without --no-enable-prefix-caching: org/Listed-8B",
        "refused: org/Pooled: Pooling",
        "without the front end in Rust: org/Tested",
        *("4 by tables", "2 would start if something is left out", "1 would start as it is", "1 refused"),
        *("2 by names that begin the same", "2 would start as it is"),
        *("1 by their own texts", "1 would start as it is"),
        "2 unknown: org/Drafted, other/Listed-1B",
        "9 recipes",
    ]


def test_models_whose_names_begin_the_same_tell_nothing_unless_they_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Among them is one that pools."""
    folder = archive(tmp_path)
    page = folder / "docs/models/supported_models.md"
    page.write_text(page.read_text() + "\n| `TextModel` | Text | `org/Listed-Embedding` |")
    main([str(folder)])
    assert "3 unknown: org/Drafted, org/Listed-2B, other/Listed-1B" in capsys.readouterr().out


@pytest.mark.parametrize("default", ["[fast]", "[]"])
def test_only_what_is_on_by_default_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str], default: str) -> None:
    """A feature that an operator may switch on is not."""
    folder = archive(tmp_path)
    features = f"features:\n  fast:\n    args: [--speculative-config, x]\nopt_in_features: {default}"
    (folder / "recipes/models/org/Tested.yaml").write_text(f"model:\n  model_id: org/Tested\n{features}")
    main([str(folder)])
    assert ("without --speculative-config: org/Tested" in capsys.readouterr().out) == (default == "[]")

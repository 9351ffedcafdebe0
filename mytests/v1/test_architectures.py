# SPDX-License-Identifier: Apache-2.0
"""docs/models.md says what the installed vLLM's code does, and what is read of that code is what vLLM says itself."""

import json
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import vllm
from docs.tools.class_graph import Definition
from docs.tools.model_classes import KINDS, SPECS, Architecture, Models
from docs.tools.models import PAGE, page
from mytests.fuzz.architectures import FIELDS, STATES
from mytests.harness.v1.releases import IS_REFERENCE
from sequence_hooks.v1.core import kv_groups
from vllm.model_executor.models import ModelRegistry
from vllm.v1 import kv_cache_interface

FOLDER = Path(vllm.__file__).parent
of_reference = pytest.mark.skipif(not IS_REFERENCE, reason="the page is of another release")

OTHERWISE = {
    # A decorator makes these.
    *("LlamaBidirectionalModel", "LlamaBidirectionalForSequenceClassification"),
    # Another class on each kind of device; that of a CPU takes no images.
    "DeepseekV4ForConditionalGeneration",
}
"""What is known to be read otherwise."""

TOLD = ("is_hybrid", "is_attention_free", "has_inner_state", "supports_multimodal")

ASK = """
import dataclasses, json, sys
from vllm.model_executor.models.registry import ModelRegistry, _ModelInfo
told = {}
for name, model in ModelRegistry.models.items():
    try:
        told[name] = dataclasses.asdict(_ModelInfo.from_model_cls(model.load_model_cls()))
    except (ImportError, AssertionError):
        continue
json.dump(told, open(sys.argv[1], "w"))
"""


@cache
def read() -> dict[str, Architecture]:
    return {each.name: each for each in Models(FOLDER).architectures()}


@of_reference
def test_the_page_lists_the_registry() -> None:
    """Each architecture once."""
    lists = PAGE.read_text().split("\n## ")[1:]
    names = [name for each in lists for name in re.findall(r"\w+", each.split("\n\n")[1])]
    assert sorted(names) == sorted(ModelRegistry.get_supported_archs())


@of_reference
@pytest.mark.full
def test_the_page_is_that_of_the_code() -> None:
    """``python -m docs.tools.models`` writes it anew."""
    assert PAGE.read_text() == page(FOLDER)


@of_reference
def test_whatever_works_is_shown_by_models_of_several_layers_of_each_kind() -> None:
    """A model with one layer of each has hidden that most children of others had wrong KV."""
    named = re.findall(r"test_\w+\[(\w+)[^]]*\]", PAGE.read_text().split("\n## ")[0])
    assert {*STATES, "gemma3_text", "deepseek_v3"} <= set(named)
    for architecture in FIELDS:
        fields = FIELDS[architecture]
        kinds = Counter(fields.get("layer_types") or fields.get("no_rope_layers") or [""] * fields["num_hidden_layers"])
        assert min(kinds.values()) > 1, architecture


def test_what_a_child_can_share_is_told_by_specifications() -> None:
    """A kind of layers has a name if hooks take it."""
    models = Models(FOLDER)
    for name, spec in vars(kv_cache_interface).items():
        if isinstance(spec, type) and issubclass(spec, kv_cache_interface.KVCacheSpec):
            is_taken = issubclass(spec, kv_groups._SHAREABLE)
            assert (models.kind_of(Definition(SPECS, name)) in KINDS.values()) == is_taken, name


@of_reference
@pytest.mark.full
def test_what_is_read_is_what_vllm_says(tmp_path: Path) -> None:
    """Of all classes that can be imported here, in a process that ends with them."""
    path = tmp_path / "told.json"
    subprocess.run([sys.executable, "-c", ASK, str(path)], check=True, capture_output=True)
    told: dict[str, dict[str, Any]] = json.loads(path.read_text())
    assert len(told) > 250
    drafts = {each.name for each in read().values() if each.tables == {"_SPECULATIVE_DECODING_MODELS"}}
    for name in sorted(told.keys() - drafts - OTHERWISE):
        assert read()[name].generates == told[name]["is_text_generation_model"], name
        assert read()[name].traits & set(TOLD) == {trait for trait in TOLD if told[name][trait]}, name

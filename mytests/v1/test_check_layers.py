# SPDX-License-Identifier: Apache-2.0
"""``python -m sequence_hooks check``: what the installed vLLM says of the layers of configurations of many kinds."""

from pathlib import Path

import pytest

import vllm
from mytests.fuzz.architectures import config_of
from mytests.harness.tiers import names
from sequence_hooks.check.layers import CHUNK, FULL, STATE, WINDOW, Layers

KINDS = {
    **dict.fromkeys(("qwen3", "glm4", "minicpm3"), (FULL,)),
    **dict.fromkeys(("gemma3_text", "exaone4"), (FULL, WINDOW)),
    "mistral": (WINDOW,),
    "llama4_text": (FULL, CHUNK),
    "mamba2": (STATE,),
    **dict.fromkeys(("falcon_h1", "granitemoehybrid"), (FULL, STATE)),
}
SHORT = ("gemma3_text",)


@pytest.mark.parametrize("architecture", names(KINDS, SHORT))
def test_kinds_are_those_of_the_model(architecture: str, tmp_path: Path) -> None:
    """By its configuration alone, before there are weights."""
    config = config_of(architecture)
    config.save_pretrained(tmp_path)
    layers = Layers.of(str(tmp_path), config, trusts_code=False)
    assert layers == Layers(KINDS[architecture], None, f"by vLLM {vllm.__version__}")

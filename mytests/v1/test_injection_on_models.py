# SPDX-License-Identifier: Apache-2.0
"""`kv_inject` on tiny models whose layers differ in what is rotated of their keys, against the oracle.

A part of each head, by neighbours (GLM 4) or halves (StableLM), or what all heads share (MiniCPM 3, DeepSeek V3); and
layers with a window or chunks beside others, of embeddings of their own (Gemma 3), sinks (gpt-oss), or none (Llama 4).
"""

from collections.abc import Iterator

import pytest
import torch

from mytests.fuzz.injection_runs import MANY_CHILDREN, RULES, run_and_check
from mytests.harness.tiers import full, pairs
from sequence_hooks.config.choices import BlockOn, PositionRule

pytestmark = [pytest.mark.model, pytest.mark.floats]

ARCHITECTURES = (
    *("glm4", "stablelm", "minicpm3", "deepseek_v3", "qwen3_moe"),
    *("gemma3_text", "gpt_oss", "exaone4", "llama4_text"),
    *("phi", "olmo2", "olmo3", "glm"),
)
IN_FULL = ("glm4", "stablelm", "deepseek_v3", "qwen3_moe", "gpt_oss", "exaone4", "llama4_text")
"""`make test` has one with windows, whose keys are rotated whole, and one of whose keys a part is."""

CASES = [
    *pairs([(each,) for each in ARCHITECTURES if each not in IN_FULL], RULES),
    *(full(each, rules) for each in IN_FULL for rules in RULES),
]


@pytest.mark.parametrize(("architecture", "rules"), CASES)
def test_all_is_as_the_oracle_says(architecture: str, rules: tuple[BlockOn, PositionRule]) -> None:
    """This holds for tokens, logprobs and prefills, and for the KV of all layers."""
    block_on, position_rule = rules
    history = MANY_CHILDREN["skewed"].under(block_on=block_on, position_rule=position_rule, architecture=architecture)
    _, layouts = run_and_check(history)
    assert all(layout.num_injected > 50 for layout in layouts)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """A thread of tests is alone, and upstream's search for n-grams leaves others behind."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_sinks_and_windows_with_several_threads() -> None:
    """Contexts of a hundred tokens are so long that upstream would split them."""
    _, layouts = run_and_check(MANY_CHILDREN["skewed"].under(architecture="gpt_oss"))
    assert max(len(layout.tokens) for layout in layouts) > 128

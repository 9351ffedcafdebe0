# SPDX-License-Identifier: Apache-2.0
"""`kv_inject` on tiny models whose layers differ in what is rotated of their keys, against the oracle.

Of some keys only a part is rotated: the first elements of each head, by pairs of neighbours (GLM 4) or of halves
(StableLM), or the last ones (MiniCPM 3).
"""

import pytest

from mytests.injection_histories import MANY_CHILDREN, RULES
from mytests.injection_runs import run_and_check
from mytests.tiers import pairs
from sequence_hooks.config.choices import BlockOn, PositionRule

pytestmark = [pytest.mark.model, pytest.mark.floats]

ARCHITECTURES = ("glm4", "stablelm", "minicpm3", "qwen3_moe")


@pytest.mark.parametrize(("architecture", "rules"), pairs([(each,) for each in ARCHITECTURES], RULES))
def test_all_is_as_the_oracle_says(architecture: str, rules: tuple[BlockOn, PositionRule]) -> None:
    """This holds for tokens, logprobs and prefills, and for the KV of all layers."""
    block_on, position_rule = rules
    history = MANY_CHILDREN["skewed"].under(block_on=block_on, position_rule=position_rule, architecture=architecture)
    _, layouts = run_and_check(history)
    assert all(layout.num_injected > 50 for layout in layouts)

# SPDX-License-Identifier: Apache-2.0
"""`kv_inject` with V0's asynchronous output processing."""

from dataclasses import replace

import pytest

from mytests.fuzz.injection_runs import run_and_check
from mytests.fuzz.shared_injection import TIGHT, everybody, random_requests
from mytests.harness.tiers import pairs
from sequence_hooks.config.choices import BlockOn

pytestmark = pytest.mark.model


@pytest.mark.parametrize(("block_on", "spare_blocks"), pairs([("promise",), ("sync",)], [6, 100]))
def test_asynchronous_outputs_change_no_token(block_on: BlockOn, spare_blocks: int) -> None:
    """They do not change what is injected either, if nothing is given up."""
    setup = replace(TIGHT, block_on=block_on, spare_blocks=spare_blocks)
    _, expected = run_and_check(random_requests(setup))
    run, layouts = run_and_check(random_requests(replace(setup, async_output=True)))
    assert run.engine.model_config.use_async_output_proc
    if spare_blocks == 100:
        told = [[layout.node.tokens, layout.num_injected] for layout in everybody(layouts)]
        assert told == [[layout.node.tokens, layout.num_injected] for layout in everybody(expected)]

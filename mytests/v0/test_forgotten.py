# SPDX-License-Identifier: Apache-2.0
"""What V0 keeps of a joined child's context; `mytests/rules/test_released.py` has what both engines do."""

from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, plan
from mytests.harness.v0.groups import child_of


def test_its_length_stays_and_its_logprobs_do_not() -> None:
    """Of the prompt the length is known; logprobs are its parent's now."""
    engine = SurgicalEngine(SYNC_HOOKS)
    group = engine.add()
    engine.run(plan(r="!.z", r_child_0="AB"))
    assert len(child_of(group).prompt_token_ids) == child_of(group).first_seq.get_prompt_len() == len("prompt!")
    assert child_of(group).first_seq.output_logprobs == []
    engine.assert_empty()

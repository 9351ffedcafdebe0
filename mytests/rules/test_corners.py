# SPDX-License-Identifier: Apache-2.0
"""Rare configurations: no text, no limit, a full batch at a resume."""

import dataclasses

from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, completed, finished, plan

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")


def test_without_detokenization_tokens_are_merged_all_the_same() -> None:
    """Token ids are merged although no sequence has text."""
    output = completed(SurgicalEngine(SYNC_HOOKS), params={"detokenize": False}, r="!.z", r_child_0="BC")
    assert output.text == ""
    assert tuple(output.token_ids[2:5]) == (ord("B"), ord("C"), ord("z"))


def test_without_max_tokens_the_models_length_is_the_limit() -> None:
    """Merged tokens count towards the model's length."""
    engine = SurgicalEngine(SYNC_HOOKS, max_model_len=20)
    output = completed(engine, prompt="p" * 6, params={"max_tokens": None}, r="!." + "z" * 30, r_child_0="BCD")
    assert output.text == "BCD" + "z" * 9


def test_resumed_together_sequences_share_the_slots() -> None:
    """With one slot they continue one after the other."""
    engine = SurgicalEngine(MANUAL, max_num_seqs=1)
    names = ["r", "s", "t"]
    for name in names:
        engine.add(name)
    script = plan(r=".abc", s=".abc", t=".abc")
    engine.run_until(engine.is_waiting_for_callers, script)
    assert engine.statuses() == dict.fromkeys(names, "BLOCKED")
    for name in names:
        engine.resume(name, name)
    while engine.has_unfinished():
        assert len(engine.step(script)) <= 1
    assert [finished(engine, name).text for name in names] == ["rabc", "sabc", "tabc"]
    engine.assert_empty()

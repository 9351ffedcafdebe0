# SPDX-License-Identifier: Apache-2.0
"""What merged tokens count for: lengths, stops, logprobs, and the counts of a tree."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, completed, finished, plan
from sequence_hooks.results import TreeTokens
from sequence_hooks.serving.usage import COUNT_TREE
from vllm.sampling_params import RequestOutputKind

NESTED = dataclasses.replace(HOOKS, max_child_depth=2)


def told(engine: SurgicalEngine) -> tuple[Any, Any]:
    """The logprobs of a finished request, and its token ids."""
    return finished(engine).logprobs, finished(engine).token_ids


class TestAccounting:
    @pytest.mark.parametrize("max_tokens", [4, 5, 6, 9])
    def test_merged_tokens_do_not_count_as_sampled(self, max_tokens: int) -> None:
        """The parent samples max_tokens tokens itself, however many are merged."""
        output = completed(SurgicalEngine(), params={"max_tokens": max_tokens}, r="a!" + "z" * 20, r_child_0="BCD")
        assert output.text == "aBCD" + "z" * (max_tokens - 2)
        assert output.finish_reason == "length"
        assert len(output.token_ids) == max_tokens + 3

    def test_the_models_length_ends_a_sequence_before_min_tokens(self) -> None:
        """A child has less room than its parent, and a parent has less room after its child's result."""
        engine = SurgicalEngine(SYNC_HOOKS, max_model_len=16)
        output = completed(
            engine, prompt="12345678", params={"min_tokens": 7}, r="a!bcdefghijk", r_child_0="BCDEFGHIJKLM"
        )
        (child,) = output.children
        assert (child.finish_reason, 8 + child.spawn_position + len(child.token_ids)) == ("length", 16)
        assert (output.finish_reason, 8 + len(output.token_ids)) == ("length", 16)

    def test_logprobs_of_merged_tokens_are_the_childs(self) -> None:
        """They are in the parent's list, and add nothing to its cumulative logprob."""
        engine = SurgicalEngine()
        output = completed(engine, r="!z", r_child_0="BC")
        assert output.cumulative_logprob == -3.0
        assert [entry[token_id].logprob for entry, token_id in zip(*told(engine), strict=True)] == [-1.0] * 5

    @pytest.mark.parametrize("strategy", ["concatenate", "none"])
    def test_prompt_logprobs_are_not_taken_again(self, strategy: str) -> None:
        """A parent that is recomputed after a join prefills past its prompt, where there are no prompt logprobs."""
        engine = SurgicalEngine(dataclasses.replace(HOOKS, child_merge_strategy=strategy))
        completed(engine, params={"prompt_logprobs": 1}, r="!z", r_child_0="BC")
        assert engine.asked_for_prompt_logprobs == ["r"]

    def test_a_separator_has_the_token_alone(self) -> None:
        """It was not sampled, so its only logprob is its own, 0."""
        output = completed(SurgicalEngine(SYNC_HOOKS), r="!!.", r_child_0="A", r_child_1="B")
        (entry,) = [logprobs for logprobs in output.logprobs if ord("\n") in logprobs]
        assert {token: value.logprob for token, value in entry.items()} == {ord("\n"): 0.0}

    def test_merged_text_does_not_stop_the_parent(self) -> None:
        """A child's result may hold the stop string; only what the parent samples can end it."""
        engine = SurgicalEngine()
        output = completed(
            engine, params={"stop": ["XY"], "include_stop_str_in_output": True}, r="a!zz", r_child_0="BXY"
        )
        assert output.text == "aBXYzz"

    @pytest.mark.parametrize(("room", "num_cut"), [(9, 0), (8, 0), (7, 1), (3, 5)])
    def test_a_merge_is_cut_to_the_models_length_and_marked(self, room: int, num_cut: int) -> None:
        """Two results and a separator are 8 tokens; a parent left without room ends with "length"."""
        engine = SurgicalEngine(SYNC_HOOKS, max_model_len=4 + 3 + room)
        output = completed(engine, prompt="p" * 4, r="!!.z", r_child_0="A" * 4, r_child_1="B" * 3)
        (join,) = output.joins
        assert (join.num_merged, join.num_cut) == (8 - num_cut, num_cut)
        assert join.num_context == 4 + 3 + join.num_merged
        assert output.finish_reason == "length"
        assert len(output.token_ids) == 3 + room

    def test_a_stop_token_that_is_merged_does_not_stop_the_parent(self) -> None:
        """Only a sampled one does; here a stop token of the parent's parameters is not one of its child's."""
        hooks = dataclasses.replace(SYNC_HOOKS, child_sampling_params={"stop_token_ids": []})
        output = completed(SurgicalEngine(hooks), params={"stop_token_ids": [ord("#")]}, r="!.yz#", r_child_0="A#B#")
        assert (output.text, output.stop_reason) == ("A#B#yz", ord("#"))

    def test_two_joins_add_up(self) -> None:
        """The parent's limits are extended by everything merged so far."""
        engine = SurgicalEngine(SYNC_HOOKS)
        output = completed(engine, params={"max_tokens": 7}, r="!.a!.b" + "z" * 9, r_child_0="AAAA", r_child_1="BB")
        assert output.text == "AAAAaBBbz"


class TestTreeTokens:
    @pytest.mark.parametrize(
        ("strategy", "expected"),
        [
            ("concatenate", TreeTokens(sampled_below=7, merged=5, inserted=1)),
            ("none", TreeTokens(sampled_below=7, merged=0, inserted=0)),
        ],
    )
    def test_what_children_sample_counts_merged_or_not(self, strategy: Any, expected: TreeTokens) -> None:
        """Their EOS tokens, which are not merged, count, too; the separator is inserted."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, child_merge_strategy=strategy))
        output = completed(engine, r="!!.z", r_child_0="AB", r_child_1="CDE")
        assert output.tree_tokens == expected

    def test_children_of_children_count_once(self) -> None:
        """What a child got from its own children is merged again, but was sampled once."""
        output = completed(SurgicalEngine(NESTED), r="!z", r_child_0="!B", r_child_0_child_0="CD")
        assert output.text == "CDBz"
        assert output.tree_tokens == TreeTokens(sampled_below=6, merged=4, inserted=0)

    def test_without_a_hook_there_is_nothing_to_count(self) -> None:
        """The count is None, not zeros."""
        output = completed(SurgicalEngine(HOOKS), r="abc")
        assert output.tree_tokens is None

    @pytest.mark.parametrize("asked", [True, False])
    def test_a_running_tree_is_counted_for_who_asks(self, asked: bool) -> None:
        """Other requests are spared the walk over the tree."""
        engine = SurgicalEngine(SYNC_HOOKS)
        extra_args = {COUNT_TREE: True} if asked else None
        engine.add(output_kind=RequestOutputKind.DELTA, extra_args=extra_args)
        script = plan(r="!abcdefg", r_child_0="ABCDEFGH")
        engine.run_until(lambda: "r_child_0" in engine.statuses() and engine.num_sampled("r_child_0") == 4, script)
        (told,) = engine.outputs["r"].outputs
        assert not engine.outputs["r"].finished
        assert told.tree_tokens == (TreeTokens(sampled_below=4, merged=0, inserted=0) if asked else None)
        engine.run(script)
        engine.assert_empty()

# SPDX-License-Identifier: Apache-2.0
"""What merged tokens count for: lengths, stops, logprobs, and the counts of a tree."""

import dataclasses

import pytest

from mytests.harness.outcomes import Case, rules
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, begun, completed, plan
from sequence_hooks.results import TreeTokens
from sequence_hooks.serving.usage import COUNT_TREE
from vllm.sampling_params import RequestOutputKind

NESTED = dataclasses.replace(HOOKS, max_child_depth=2)


HASH = ord("#")
NO_STOP_TOKENS = dataclasses.replace(SYNC_HOOKS, child_sampling_params={"stop_token_ids": []})


@pytest.mark.rule(6)
@rules(
    {
        "max_tokens 4": Case(HOOKS, "a!zzzzzzzzz", "BCD", params={"max_tokens": 4}, text="aBCDzz", num_tokens=7),
        "max_tokens 5": Case(HOOKS, "a!zzzzzzzzz", "BCD", params={"max_tokens": 5}, text="aBCDzzz", num_tokens=8),
        "max_tokens 9": Case(HOOKS, "a!zzzzzzzzz", "BCD", params={"max_tokens": 9}, text="aBCDzzzzzzz", num_tokens=12),
        "of two joins": Case(
            SYNC_HOOKS, "!.a!.bzzzzzzzzz", "AAAA", "BB", params={"max_tokens": 7}, text="AAAAaBBbz", num_tokens=13
        ),
        "a stop string": Case(
            HOOKS, "a!zz", "BXY", params={"stop": ["XY"], "include_stop_str_in_output": True}, text="aBXYzz"
        ),
        "a stop token": Case(
            NO_STOP_TOKENS, "!.yz#", "A#B#", params={"stop_token_ids": [HASH]}, text="A#B#yz", stop_reason=HASH
        ),
    }
)
def test_merged_tokens_do_not_count_as_sampled(case: Case) -> None:
    """The parent's own tokens alone end it, however many are merged, and whatever they are."""
    case.check()


@pytest.mark.rule(6)
class TestAccounting:
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
        output = completed(SurgicalEngine(), r="!z", r_child_0="BC")
        assert output.cumulative_logprob == -3.0
        pairs = zip(output.logprobs, output.token_ids, strict=True)
        assert [entry[token_id].logprob for entry, token_id in pairs] == [-1.0] * 5

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

    @pytest.mark.rule(7)
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


class TestTreeTokens:
    @rules(
        {
            "merged": Case(SYNC_HOOKS, "!!.z", "AB", "CDE", tree_tokens=TreeTokens(7, 5, 1)),
            "not merged": Case(
                dataclasses.replace(SYNC_HOOKS, child_merge_strategy="none"), "!!.z", "AB", "CDE",
                tree_tokens=TreeTokens(7, 0, 0),
            ),
            "merged twice": Case(NESTED, "!z", ("!B", "CD"), text="CDBz", tree_tokens=TreeTokens(6, 4, 0)),
            "without a hook": Case(HOOKS, "abc", tree_tokens=None),
        }
    )  # fmt: skip
    def test_what_children_sample_counts_once(self, case: Case) -> None:
        """Their EOS tokens, which are not merged, count, too; the separator is inserted. Without hooks it is None."""
        case.check()

    @pytest.mark.parametrize("asked", [True, False])
    def test_a_running_tree_is_counted_for_who_asks(self, asked: bool) -> None:
        """Other requests are spared the walk over the tree."""
        engine = SurgicalEngine(SYNC_HOOKS)
        extra_args = {COUNT_TREE: True} if asked else None
        with begun(
            engine,
            plan(r="!abcdefg", r_child_0="ABCDEFGH"),
            lambda: "r_child_0" in engine.statuses() and engine.num_sampled("r_child_0") == 4,
            output_kind=RequestOutputKind.DELTA,
            extra_args=extra_args,
        ):
            (told,) = engine.outputs["r"].outputs
            assert not engine.outputs["r"].finished
            assert told.tree_tokens == (TreeTokens(sampled_below=4, merged=0, inserted=0) if asked else None)

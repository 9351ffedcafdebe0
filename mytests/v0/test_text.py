# SPDX-License-Identifier: Apache-2.0
"""V0's way to detokenize merged tokens: in one pass, if that gives the same text as token by token."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mytests.harness.spoken import TOKENIZER, engine_with, said
from mytests.harness.surgical import CHILD, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, completed, ids
from mytests.harness.v0.characters import CharDetokenizer, TokenizerGroup
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence
from vllm.transformers_utils.detokenizer import Detokenizer

GROUP = TokenizerGroup(TOKENIZER)


@pytest.mark.rule(4)
def test_a_token_that_is_partly_a_stop_string_stays() -> None:
    """Tokens are merged whole."""
    engine = SurgicalEngine(SYNC_HOOKS, detokenizer=Doubling())
    (child,) = completed(engine, params={"stop": ["bc"]}, r="!.z", r_child_0="abc").children
    assert (child.text, child.result_token_ids) == ("aab", tuple(ids("ab")))


class Doubling(CharDetokenizer):
    """Decodes each character twice, so that a stop string can begin in the middle of a token."""

    def decode_sequence_inplace(self, seq: Sequence, params: SamplingParams) -> int:
        count = super().decode_sequence_inplace(seq, params) + super().decode_sequence_inplace(seq, params)
        seq.output_logprobs[-1][seq.get_last_token_id()].decoded_token = seq.output_text[len(seq.output_text) - count :]
        return count


class TokenByToken:
    """Upstream's detokenizer in a wrapper that makes merged tokens go through it one by one."""

    def __init__(self) -> None:
        self._detokenizer = Detokenizer(GROUP)

    def decode_sequence_inplace(self, seq: Sequence, params: SamplingParams) -> int:
        return self._detokenizer.decode_sequence_inplace(seq, params)


class Counting(Detokenizer):
    """Upstream's detokenizer, which counts the tokens that it decodes."""

    num_decoded = 0

    def decode_sequence_inplace(self, seq: Sequence, params: SamplingParams) -> int:
        self.num_decoded += 1
        return super().decode_sequence_inplace(seq, params)


PIECES = st.lists(
    st.sampled_from(["a", " b", "é", "日", "日".encode()[:2], "日".encode()[2:], b"\xff", CHILD, "\ufffd"])
)


class TestOnePass:
    @settings(deadline=None, max_examples=40)
    @example([], [CHILD, CHILD], [], [], True)
    @example(["日".encode()[:2]], ["日".encode()[2:], "a"], [], [], False)
    @example([], ["日".encode()[:2], "日".encode()[2:]], [], [], False)
    @given(PIECES, PIECES, PIECES, PIECES, st.booleans())
    def test_it_gives_what_token_by_token_gives(
        self, before: list[Any], first: list[Any], second: list[Any], after: list[Any], skips: bool
    ) -> None:
        """The results are equal even if a character is split between tokens, or a token is special."""
        outputs = []
        for detokenizer in (Detokenizer(GROUP), TokenByToken()):
            engine = engine_with(detokenizer, merge_separator="\n")
            parent, params = [*before, PROMISE, PROMISE, SYNC, *after], {"skip_special_tokens": skips}
            output = said(engine, params, r=parent, r_child_0=first, r_child_1=second)
            outputs.append((output.text, output.token_ids, [child.text for child in output.children]))
        assert outputs[0] == outputs[1]

    def test_a_span_costs_one_decoded_token(self) -> None:
        """The others take one pass together, however many they are."""
        counts = []
        for length in (10, 40):
            engine = engine_with(detokenizer := Counting(GROUP))
            output = said(engine, r=["a", PROMISE, SYNC, "b"], r_child_0=["x" * length])
            assert output.text == "a" + "x" * length + "b"
            counts.append(detokenizer.num_decoded - length)
        assert counts[0] == counts[1]

    def test_a_child_without_text_is_decoded_for_its_parent(self) -> None:
        """Its tokens have not been decoded before."""
        engine = engine_with(child_sampling_params={"detokenize": False})
        output = said(engine, r=["a", PROMISE, SYNC, "b"], r_child_0=["xyz"])
        assert (output.text, [child.text for child in output.children]) == ("axyzb", [""])

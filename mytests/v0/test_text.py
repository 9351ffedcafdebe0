# SPDX-License-Identifier: Apache-2.0
"""V0 detokenizes merged tokens in one pass; and texts that go on a sequence are, decoded, what was asked for."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mytests.harness.small_tokenizers import KINDS, LETTERS, TAGS, word_piece
from mytests.harness.spoken import TOKENIZER, engine_with, said
from mytests.harness.surgical import CHILD, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, completed, ids
from mytests.harness.v0.characters import CharDetokenizer, TokenizerGroup
from sequence_hooks.text.continuing import continuing_ids
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


TOKENIZERS = {name: make() for name, make in KINDS.items()}
TEXTS = st.lists(st.sampled_from([*LETTERS, *LETTERS[:3], " ", "  ", "\n", "\n\n", *TAGS, "ab", ">.", "é", "语"]))
WORDS = st.lists(st.sampled_from(["ab", "abc", "xyz", "g"]), min_size=1).map(
    lambda words: "".join(f" {w}" for w in words)
)


def decoded(tokenizer: Any, token_ids: list[int]) -> str:
    """The text of tokens, special ones included."""
    text: str = tokenizer.decode(token_ids, skip_special_tokens=False)
    return text


def alone(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text that begins a context."""
    token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return token_ids


@pytest.mark.rule(4)
@pytest.mark.parametrize("kind", KINDS)
@given(before=TEXTS.map("".join).filter(bool), texts=st.lists(TEXTS.map("".join), max_size=4))
def test_decoding_what_was_inserted_gives_the_text(kind: str, before: str, texts: list[str]) -> None:
    """After whatever it follows, with tokenizers of each kind."""
    tokenizer = TOKENIZERS[kind]
    context = alone(tokenizer, before)
    expected = decoded(tokenizer, context) + "".join(texts)
    for text in texts:
        context += continuing_ids(text, tokenizer)
    assert decoded(tokenizer, context) == expected


@given(texts=st.lists(WORDS, min_size=1))
def test_with_words_it_holds_for_words(texts: list[str]) -> None:
    """Parts of words, line breaks and several spaces are not texts that such a tokenizer has."""
    tokenizer = word_piece()
    context = alone(tokenizer, "ab")
    for text in texts:
        context += continuing_ids(text, tokenizer)
    assert decoded(tokenizer, context) == "ab" + "".join(texts)


def test_a_dummy_prefix_is_left_out() -> None:
    """At the beginning, and after added tokens."""
    tokenizer = TOKENIZERS["llama-legacy"]
    assert decoded(tokenizer, alone(tokenizer, "a") + alone(tokenizer, "\n<step>\n")) == "a \n<step> \n"
    names = tokenizer.convert_ids_to_tokens(continuing_ids("\n<step>\n<a", tokenizer))
    assert names == ["<0x0A>", "<step>", "<0x0A>", "<a"]


@pytest.mark.parametrize("kind", ["byte-level", "metaspace-never", "gemma"])
@given(text=TEXTS.map("".join))
def test_where_nothing_is_added_the_tokens_are_the_tokenizers(kind: str, text: str) -> None:
    """Token for token."""
    assert continuing_ids(text, TOKENIZERS[kind]) == alone(TOKENIZERS[kind], text)


def test_what_cannot_be_spelled_is_what_the_tokenizer_makes_of_it() -> None:
    """Not every tokenizer has every character."""
    tokenizer = word_piece()
    for text in ("\n", "ab\nab", "?", "<step>?"):
        assert continuing_ids(text, tokenizer) == alone(tokenizer, text)

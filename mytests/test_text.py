# SPDX-License-Identifier: Apache-2.0
"""Text, stop strings and streams across a merge, with upstream's own detokenizer on a byte-level tokenizer."""

import dataclasses
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mytests.characters import CHILD
from mytests.surgical import (
    EOS,
    PROMISE,
    SYNC,
    SYNC_HOOKS,
    CharDetokenizer,
    SurgicalEngine,
    finished,
    ids,
    num_sampled,
    plan,
)
from vllm.engine.output_processor.sequence_hook import EngineFacts
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.sequence import Sequence, SequenceGroup
from vllm.transformers_utils.detokenizer import Detokenizer

SPECIAL = ["<pad>", "<eos>", "<promise>", "<sync>", "<child>"]


class TokenizerGroup:
    """One tokenizer for all sequences."""

    def __init__(self) -> None:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {token: token_id for token_id, token in enumerate([*SPECIAL, *letters])}
        tokenizer = Tokenizer(models.BPE(vocab, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
        fast.add_special_tokens({"additional_special_tokens": SPECIAL[2:]})
        self.tokenizer = fast

    def get_lora_tokenizer(self, lora_request: object = None) -> Any:
        return self.tokenizer


GROUP = TokenizerGroup()
FACTS = EngineFacts(GROUP.tokenizer, len(GROUP.tokenizer))


def engine_with(detokenizer: Any = None, **hooks: Any) -> SurgicalEngine:
    """An engine that decodes bytes and blocks at the sync token."""
    fields = {"merge_separator": "", **hooks}
    return SurgicalEngine(
        dataclasses.replace(SYNC_HOOKS, **fields),
        facts=FACTS,
        detokenizer=detokenizer or Detokenizer(GROUP),
        tokenizer=GROUP.tokenizer,
    )


def spoken(**pieces: list[int | str | bytes]) -> Any:
    """A script like `plan`, of token ids, texts and bytes."""
    scripts = {name: [token for piece in script for token in _ids(piece)] for name, script in pieces.items()}

    def choose(group: SequenceGroup) -> int:
        script = scripts[group.request_id]
        position = num_sampled(group)
        return script[position] if position < len(script) else EOS

    return choose


def _ids(piece: int | str | bytes) -> list[int]:
    if isinstance(piece, int):
        return [piece]
    text = piece if isinstance(piece, bytes) else piece.encode()
    # One byte at a time, so that characters may be cut in the middle.
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False)
    table = {char.encode(): letters.pre_tokenize_str(char)[0][0] for char in map(chr, range(128))}
    alphabet = GROUP.tokenizer.get_vocab()
    return [alphabet[table.get(bytes([byte]), _high_letter(byte))] for byte in text]


def _high_letter(byte: int) -> str:
    """How a byte-level vocabulary writes a byte above 127."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [code for code in range(256) if code not in printable]
    return chr(byte) if byte in printable else chr(256 + others.index(byte))


def test_tokens_past_the_tokenizers_are_merged_without_text() -> None:
    """A model's vocabulary is often padded, and the model may sample from the padding."""
    engine = engine_with()
    past = len(GROUP.tokenizer) + 7
    engine.add()
    engine.run(spoken(r=[PROMISE, SYNC, "z"], r_child_0=["a", past, "bcd"]))
    assert finished(engine).text == "abcdz"
    assert past in finished(engine).token_ids
    engine.assert_empty()


class TestText:
    @pytest.mark.parametrize(
        ("before", "child", "after"),
        [
            ("a", "é", "z"),
            ("日", "本", "語"),
            ("", "日".encode()[:2], "日".encode()[2:]),
            ("日".encode()[:1], "日".encode()[1:], "!"),
            ("x", b"\xf0\x9f", b"\x98\x80."),
        ],
        ids=["two-bytes", "three-bytes", "cut-by-the-child", "cut-by-the-parent", "cut-emoji"],
    )
    def test_text_is_the_decode_of_the_tokens(self, before: Any, child: Any, after: Any) -> None:
        """Multi-byte characters may be at a merge's border, or split between two sequences."""
        engine = engine_with()
        engine.add()
        engine.run(spoken(r=[before, PROMISE, SYNC, after], r_child_0=[child]))
        token_ids = finished(engine).token_ids[:-1]
        assert finished(engine).text == GROUP.tokenizer.decode(token_ids, skip_special_tokens=True)
        engine.assert_empty()


class TestStopStrings:
    def test_a_stop_string_begun_by_a_child_does_not_stop_its_parent(self) -> None:
        """Otherwise merged characters would count as sampled ones."""
        engine = engine_with()
        engine.add(stop=["END"])
        engine.run(spoken(r=["a", PROMISE, SYNC, "D", "bENDc"], r_child_0=["xEN"]))
        assert finished(engine).text == "axENDb"
        assert finished(engine).stop_reason == "END"
        engine.assert_empty()

    @pytest.mark.parametrize(("include", "text"), [(False, "ax b"), (True, "ax stop b")])
    def test_a_childs_stop_string_is_merged_if_it_is_part_of_its_text(self, include: bool, text: str) -> None:
        """If it is not, its tokens are left out of the result, as its text is."""
        engine = engine_with()
        engine.add(stop=["stop"], include_stop_str_in_output=include)
        engine.run(spoken(r=["a", PROMISE, SYNC, " b"], r_child_0=["x stop more"]))
        (child,) = finished(engine).children
        assert finished(engine).text == text.replace("ax b", "ax  b")
        assert GROUP.tokenizer.decode(child.result_token_ids) == child.text
        engine.assert_empty()

    def test_a_hook_token_before_a_stop_string_stays(self) -> None:
        """It has no text, but it is the child's own."""
        engine = engine_with()
        engine.add(stop=["stop"])
        engine.run(spoken(r=["a", PROMISE, SYNC, "b"], r_child_0=["x", PROMISE, "stop"]))
        (child,) = finished(engine).children
        assert child.result_token_ids == (*_ids("x"), PROMISE)
        engine.assert_empty()

    def test_a_token_that_is_partly_a_stop_string_stays(self) -> None:
        """Tokens are merged whole."""
        engine = SurgicalEngine(SYNC_HOOKS, detokenizer=Doubling())
        engine.add(stop=["bc"])
        engine.run(plan(r="!.z", r_child_0="abc"))
        (child,) = finished(engine).children
        assert (child.text, child.result_token_ids) == ("aab", tuple(ids("ab")))
        engine.assert_empty()


class Doubling(CharDetokenizer):
    """Decodes each character twice, so that a stop string can begin in the middle of a token."""

    def decode_sequence_inplace(self, seq: Sequence, params: SamplingParams) -> int:
        count = super().decode_sequence_inplace(seq, params) + super().decode_sequence_inplace(seq, params)
        seq.output_logprobs[-1][seq.get_last_token_id()].decoded_token = seq.output_text[len(seq.output_text) - count :]
        return count


class TestStreams:
    def run(self, kind: RequestOutputKind) -> list[Any]:
        """The outputs of one request, in order."""
        engine = engine_with()
        engine.add(output_kind=kind)
        script = spoken(r=["ab", PROMISE, "c", SYNC, "d"], r_child_0=["xyz"])
        seen: list[Any] = []
        while engine.scheduler.has_unfinished_seqs():
            engine.outputs.clear()
            engine.step(script)
            seen += (output.outputs[0] for output in engine.outputs.values())
        engine.assert_empty()
        return seen

    def test_cumulative_outputs_grow(self) -> None:
        """They pause while the request is BLOCKED; the first output after that has the merged text."""
        texts = [output.text for output in self.run(RequestOutputKind.CUMULATIVE)]
        assert texts == ["a", "ab", "ab", "abc", "abc", "abcxyzd", "abcxyzd"]

    def test_deltas_add_up(self) -> None:
        """Merged text and tokens come with the next sampled one, each with its logprobs."""
        outputs = self.run(RequestOutputKind.DELTA)
        assert [output.text for output in outputs] == ["a", "b", "", "c", "", "xyzd", ""]
        assert [len(output.token_ids) for output in outputs] == [1, 1, 1, 1, 1, 4, 1]
        assert [len(output.logprobs) for output in outputs] == [1, 1, 1, 1, 1, 4, 1]

    def test_final_only_is_one_output(self) -> None:
        """The only output has the tree."""
        (output,) = self.run(RequestOutputKind.FINAL_ONLY)
        assert output.text == "abcxyzd"
        assert [child.text for child in output.children] == ["xyz"]


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
    @settings(deadline=None)
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
            engine.add(skip_special_tokens=skips)
            parent = [*before, PROMISE, PROMISE, SYNC, *after]
            engine.run(spoken(r=parent, r_child_0=first, r_child_1=second))
            output = finished(engine)
            outputs.append((output.text, output.token_ids, [child.text for child in output.children]))
            engine.assert_empty()
        assert outputs[0] == outputs[1]

    def test_a_span_costs_one_decoded_token(self) -> None:
        """The others take one pass together, however many they are."""
        counts = []
        for length in (10, 40):
            engine = engine_with(detokenizer := Counting(GROUP))
            engine.add()
            engine.run(spoken(r=["a", PROMISE, SYNC, "b"], r_child_0=["x" * length]))
            assert finished(engine).text == "a" + "x" * length + "b"
            counts.append(detokenizer.num_decoded - length)
        assert counts[0] == counts[1]

    def test_a_child_without_text_is_decoded_for_its_parent(self) -> None:
        """Its tokens have not been decoded before."""
        engine = engine_with(child_sampling_params={"detokenize": False})
        engine.add()
        engine.run(spoken(r=["a", PROMISE, SYNC, "b"], r_child_0=["xyz"]))
        assert finished(engine).text == "axyzb"
        assert [child.text for child in finished(engine).children] == [""]
        engine.assert_empty()

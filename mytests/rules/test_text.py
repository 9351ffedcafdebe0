# SPDX-License-Identifier: Apache-2.0
"""Text, stop strings and streams across a merge, with upstream's own detokenizer on a byte-level tokenizer."""

from typing import Any

import pytest

from mytests.harness.spoken import PROMPT, TOKENIZER, byte_ids, engine_with, said, spoken
from mytests.harness.surgical import PROMISE, SYNC
from vllm.sampling_params import RequestOutputKind


def test_tokens_past_the_tokenizers_are_merged_without_text() -> None:
    """A model's vocabulary is often padded, and the model may sample from the padding."""
    past = len(TOKENIZER) + 7
    output = said(engine_with(), r=[PROMISE, SYNC, "z"], r_child_0=["a", past, "bcd"])
    assert output.text == "abcdz"
    assert past in output.token_ids


class TestText:
    @pytest.mark.rule(4)
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
        output = said(engine_with(), r=[before, PROMISE, SYNC, after], r_child_0=[child])
        assert output.text == TOKENIZER.decode(output.token_ids[:-1], skip_special_tokens=True)


class TestStopStrings:
    @pytest.mark.rule(6)
    def test_a_stop_string_begun_by_a_child_does_not_stop_its_parent(self) -> None:
        """Otherwise merged characters would count as sampled ones."""
        output = said(engine_with(), {"stop": ["END"]}, r=["a", PROMISE, SYNC, "D", "bENDc"], r_child_0=["xEN"])
        assert (output.text, output.stop_reason) == ("axENDb", "END")

    @pytest.mark.rule(4)
    @pytest.mark.parametrize(("include", "text"), [(False, "ax b"), (True, "ax stop b")])
    def test_a_childs_stop_string_is_merged_if_it_is_part_of_its_text(self, include: bool, text: str) -> None:
        """If it is not, its tokens are left out of the result, as its text is."""
        params = {"stop": ["stop"], "include_stop_str_in_output": include}
        output = said(engine_with(), params, r=["a", PROMISE, SYNC, " b"], r_child_0=["x stop more"])
        (child,) = output.children
        assert output.text == text.replace("ax b", "ax  b")
        assert TOKENIZER.decode(child.result_token_ids) == child.text

    def test_a_hook_token_before_a_stop_string_stays(self) -> None:
        """It has no text, but it is the child's own."""
        output = said(engine_with(), {"stop": ["stop"]}, r=["a", PROMISE, SYNC, "b"], r_child_0=["x", PROMISE, "stop"])
        assert output.children[0].result_token_ids == (*byte_ids("x"), PROMISE)


@pytest.mark.rule(10)
class TestStreams:
    def run(
        self, kind: RequestOutputKind, parent: Any = ("ab", PROMISE, "c", SYNC, "d"), child: Any = "xyz"
    ) -> list[Any]:
        """The outputs of one request, in order."""
        engine = engine_with()
        engine.add(prompt=PROMPT, output_kind=kind)
        script = spoken(r=list(parent), r_child_0=[child])
        seen: list[Any] = []
        while engine.has_unfinished():
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
        """Merged text and tokens come with the next sampled one, each with its logprobs; without tokens none do."""
        outputs = self.run(RequestOutputKind.DELTA)
        assert [output.text for output in outputs] == ["a", "b", "", "c", "", "xyzd", ""]
        assert [len(output.token_ids) for output in outputs] == [1, 1, 1, 1, 1, 4, 1]
        for each in [*outputs, *self.run(RequestOutputKind.DELTA, ("ab", PROMISE), "")]:
            assert len(each.logprobs or ()) == len(each.token_ids)

    def test_final_only_is_one_output(self) -> None:
        """The only output has the tree."""
        (output,) = self.run(RequestOutputKind.FINAL_ONLY)
        assert (output.text, [child.text for child in output.children]) == ("abcxyzd", ["xyz"])

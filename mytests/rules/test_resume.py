# SPDX-License-Identifier: Apache-2.0
"""``sync_resume="manual"``: a sequence waits at its sync token until a caller lets it go on."""

import dataclasses
import logging
import time
from typing import Any

import pytest

from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, begun, finished, plan
from sequence_hooks.results import Segment, Waiting
from vllm.sampling_params import RequestOutputKind

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual", max_child_depth=2)


def waiting_engine(script: str = "a.z", max_model_len: int = 128, **texts: str) -> SurgicalEngine:
    """An engine whose request "r" waits for a caller."""
    engine = SurgicalEngine(MANUAL, max_model_len=max_model_len)
    engine.add()
    for _ in range(12):
        engine.step(plan(r=script, **texts))
    assert engine.statuses() == {"r": "BLOCKED"}
    return engine


def resumed(*given: Any, script: str = "a.z", max_model_len: int = 128, **texts: str) -> Any:
    """The completion of a request that is resumed with each of these; afterwards its engine is empty."""
    engine = waiting_engine(script, max_model_len, **texts)
    for each in given:
        engine.resume("r", each)
        for _ in range(3):
            engine.step(plan(r=script, **texts))
    engine.run(plan(r=script, **texts))
    engine.assert_empty()
    return finished(engine)


@pytest.mark.rule(3)
class TestResume:
    def test_it_waits_without_an_end(self) -> None:
        """The request is unfinished, nothing is scheduled, and a caller is awaited; an abort ends it."""
        engine = waiting_engine()
        assert engine.awaiting() == ["r"]
        assert engine.is_waiting_for_callers()
        assert engine.step({}) == []
        engine.abort("r")
        engine.run({})
        engine.assert_empty()

    @pytest.mark.parametrize(("given", "text"), [(None, "az"), ("tool", "atoolz"), ([ord("!")], "a!z"), ([], "az")])
    def test_it_goes_on_with_what_it_is_given(self, given: str | list[int] | None, text: str) -> None:
        """A caller gives a text, token ids, or nothing."""
        assert resumed(given).text == text

    def test_what_it_is_given_stands_behind_its_childrens_results(self) -> None:
        """It is "inserted", since no sequence sampled it."""
        output = resumed("tool", script="!.z", r_child_0="BC")
        assert output.text == "BCtoolz"
        assert output.segments[1:3] == (Segment(2, 4, "merged", "r_child_0"), Segment(4, 8, "inserted"))

    def test_resumed_early_it_still_waits_for_its_children(self) -> None:
        """The call and the children's results are both needed, in either order."""
        engine, script = SurgicalEngine(MANUAL), plan(r="!.z", r_child_0="BCDEF")
        with begun(engine, script, lambda: bool(engine.awaiting())):
            engine.resume("r", "tool")
            assert engine.statuses() == {"r": "BLOCKED", "r_child_0": "RUNNING"}
        assert finished(engine).text == "BCDEFtoolz"

    def test_a_child_is_resumed_by_its_own_id(self) -> None:
        """Meanwhile its parent waits for it."""
        engine = SurgicalEngine(MANUAL)
        with begun(engine, plan(r="!y", r_child_0="B.C"), engine.is_waiting_for_callers):
            engine.resume("r_child_0", "tool")
        assert finished(engine).text == "yBtoolC"

    @pytest.mark.rule(5)
    def test_it_waits_at_each_sync(self) -> None:
        """Each sync token needs a call of its own; at its end a parent waits for its children alone."""
        assert resumed("1", "2", script="a.b.!c", r_child_0="DEF").text == "a1b2cDEF"


class TestWhatACallerLearns:
    def test_the_list_says_what_it_waits_with(self) -> None:
        """Its text, its position, and the children whose results it gets."""
        engine, script = SurgicalEngine(MANUAL), plan(r="a!.z", r_child_0="BCDEF")
        began = time.time()
        with begun(engine, script, lambda: bool(engine.awaiting())):
            (waiting,) = engine.waits()
            assert began <= waiting.since <= time.time()
            assert waiting == Waiting("r", None, 0, 3, "a", ("r_child_0",), 1, waiting.since)
            engine.run_until(engine.is_waiting_for_callers, script)
            assert engine.waits() == [dataclasses.replace(waiting, num_unfinished_children=0)]
            engine.abort("r")

    @pytest.mark.parametrize("given", [{}, {"stream_children": True}])
    def test_a_stream_says_when_it_begins(self, given: dict[str, bool]) -> None:
        """Once for each wait, with the id to resume, also if a child waits."""
        engine, script = SurgicalEngine(MANUAL), plan(r="!.y.", r_child_0="B.C")
        engine.add(output_kind=RequestOutputKind.DELTA, extra_args=given)
        engine.run_until(engine.is_waiting_for_callers, script)
        assert [(each.request_id, each.parent_id) for each in engine.told_waiting] == [("r", None), ("r_child_0", "r")]
        for request_id in ("r_child_0", "r", "r"):
            engine.resume(request_id, None)
            engine.run_until(lambda: engine.is_waiting_for_callers() or engine.is_idle(), script)
        assert [each.text for each in engine.told_waiting] == ["", "B", "BCy"]
        engine.assert_empty()

    def test_outputs_with_all_text_so_far_say_nothing(self) -> None:
        """Who reads them expects a completion in each."""
        engine = SurgicalEngine(MANUAL)
        with begun(engine, plan(r="."), engine.is_waiting_for_callers):
            assert engine.told_waiting == []
            assert all(output.outputs for output in engine.handed_out)
            engine.abort("r")

    def test_the_log_has_a_line(self, caplog: pytest.LogCaptureFixture) -> None:
        """With the id to resume; one for each wait."""
        with caplog.at_level(logging.INFO, logger="vllm"):
            waiting_engine("a.z")
        assert caplog.messages.count("r: waits for its caller after 2 tokens") == 1


class TestErrors:
    @pytest.mark.rule(3)
    @pytest.mark.parametrize("request_id", ["s", "r_child_0", "a" * 10**6])
    def test_an_id_that_does_not_wait_is_refused(self, request_id: str) -> None:
        """The error names the id, and those that wait, however long they are; what an earlier call gave is not lost."""
        engine = waiting_engine()
        with pytest.raises(
            ValueError, match=f"request_id is '{request_id[:9]}.*those that wait are \\['r'\\]"
        ) as raised:
            engine.resume(request_id, None)
        assert len(str(raised.value)) < 400
        engine.resume("r", "one")
        with pytest.raises(ValueError, match=r"no such sequence waits .*those that wait are \[\]"):
            engine.resume("r", "two")
        engine.run(plan(r="a.z"))
        assert finished(engine).text == "aonez"

    @pytest.mark.parametrize(
        "given",
        [
            [-1],
            [0x11000],
            ["a"],
            5,
            [1.5],
            [True],
            [2.0],
            "\ud800",
            [10**5000],
            [*range(50), "a" * 5000],
            {"a" * 5000: 1},
        ],
    )
    def test_what_is_no_token_is_refused(self, given: Any) -> None:
        """The short error names the argument, its value and the way out, and the sequence keeps waiting."""
        engine = waiting_engine()
        engine.tokenizer.encode = bytes_of
        with pytest.raises(ValueError, match=r"text_or_token_ids is .*; give a text, or a list of token ids") as raised:
            engine.resume("r", given)
        assert repr_short(given) in str(raised.value) and len(str(raised.value)) < 400
        assert_waits(engine)


class TestRoom:
    """Of 20 tokens "prompta." leaves room for 12."""

    @pytest.mark.parametrize("given", ["b" * 12, [ord("b")] * 12])
    def test_what_fits_exactly_is_taken(self, given: str | list[int]) -> None:
        """The sequence then ends at the model's length."""
        output = resumed(given, max_model_len=20)
        assert (output.text, output.finish_reason) == ("a" + "b" * 12, "length")

    @pytest.mark.rule(3)
    @pytest.mark.parametrize("given", ["b" * 13, [ord("b")] * 13])
    def test_what_does_not_fit_is_refused(self, given: str | list[int]) -> None:
        """Nothing is cut and nothing is lost: the sequence keeps waiting."""
        engine = waiting_engine(max_model_len=20)
        with pytest.raises(ValueError, match=r"text_or_token_ids has 13 .* room for 12.*; give"):
            engine.resume("r", given)
        assert_waits(engine)

    def test_a_text_that_cannot_fit_is_not_encoded(self) -> None:
        """It has more characters than the longest token times the room."""
        engine = waiting_engine(max_model_len=20)
        engine.tokenizer.get_vocab = lambda: {"a": 0, "bcd": 1}
        encoded: list[str] = []

        def encode(text: str, add_special_tokens: bool) -> list[int]:
            encoded.append(text)
            return [1]

        engine.tokenizer.encode = encode
        with pytest.raises(ValueError, match=r"has 37 characters, .* room for 12 tokens, which are 36 characters"):
            engine.resume("r", "b" * 37)
        assert_waits(engine)
        engine.resume("r", "b" * 36)
        assert "b" * 36 in encoded and "b" * 37 not in encoded


def repr_short(given: Any) -> str:
    """What an error has of a value."""
    return repr(given) if given != [10**5000] and len(repr(given)) < 100 else ""


def bytes_of(text: str, add_special_tokens: bool) -> list[int]:
    """Encodes a text as its bytes; as real tokenizers, it takes no lone surrogates."""
    return list(text.encode())


def assert_waits(engine: SurgicalEngine) -> None:
    """Asserts that ``r`` waits as if there had been no call."""
    assert engine.statuses() == {"r": "BLOCKED"}
    assert engine.is_waiting_for_callers()

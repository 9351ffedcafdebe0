# SPDX-License-Identifier: Apache-2.0
"""Nothing but time tells an answer by outline from an ordinary one, whatever is sampled and however it arrives."""

import asyncio
import json
from collections.abc import AsyncIterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mytests.harness.outline_engine import (
    EOS,
    PIECES,
    Detokenizer,
    Expansion,
    Kind,
    Play,
    Player,
    ids,
    known,
    results,
    text_of,
)
from sequence_hooks.config.outline_prompt import TRIGGER
from sequence_hooks.protocols.outlines import checked_outline
from sequence_hooks.serving.outlines.answer import Asked, NoOutline, OutlineAnswer
from sequence_hooks.serving.outlines.tape import Stops, Tape


def ended_at_mark(expansion: Expansion) -> Expansion:
    """As a stop string ends it: a token that begins before the mark is in its result. A child samples one at least."""
    token_ids = expansion.token_ids
    for end in range(1, len(token_ids) + 1):
        start = text_of(token_ids[:end]).find(TRIGGER)
        if start >= 0:
            num_kept = next(each for each in range(end + 1) if len(text_of(token_ids[:each])) >= start)
            return Expansion(token_ids[:num_kept], token_ids[num_kept:end], "stop")
    return expansion if token_ids or expansion.ending else Expansion(())


_WORDS = ["so", " far", "1. ", "###", "</think>", "\n", "\n\n", "2. b:", "\N{SLIGHTLY SMILING FACE}", "é", ":", "x. "]
_texts = st.lists(st.sampled_from(_WORDS), max_size=6).map("".join)
_tokens = st.lists(st.sampled_from([*PIECES, *b"ab\n#.1"]) | _texts.map(lambda text: tuple(ids(text))), max_size=5).map(
    lambda pieces: [each for piece in pieces for each in (piece if isinstance(piece, tuple) else (piece,))]
)
_ENDS: list[tuple[tuple[int, ...], str]] = [
    ((EOS,), "stop"),
    (tuple(ids("\n\n")), "stop"),
    ((), "stop"),
    ((), "length"),
]
_expansions = st.builds(
    lambda token_ids, cut, end: ended_at_mark(Expansion(tuple(token_ids[: len(token_ids) - cut]), *end)),
    _tokens,
    st.integers(0, 2),
    st.sampled_from(_ENDS),
)
_points = st.text(st.sampled_from("abé: ,?1\N{SLIGHTLY SMILING FACE}"), min_size=1, max_size=8).map(
    lambda text: " ".join(text.split()) or "a"
)
_own = st.lists(
    st.builds("{}{}{}".format, _points, st.sampled_from(["", "\r", "\x0b", "\x1c", "\x85", "\u2028", ". "]), _points)
    | st.builds("{}. {}".format, st.integers(1, 3), _points),
    min_size=1,
    max_size=3,
).filter(lambda points: all(any(map(str.isalnum, point)) for point in points))
_conclusions = st.just(()) | _tokens.map(lambda token_ids: (*ids("\n\nx"), *token_ids, EOS))


@st.composite
def plays(draw: st.DrawFn) -> Play:
    """Any answer that has an outline."""
    own = checked_outline(draw(_own), 10) if draw(st.booleans()) else ()
    points = draw(st.lists(_points, min_size=1, max_size=4))
    expansions = draw(st.lists(_expansions, min_size=4, max_size=4))
    conclusion, is_by_line, has_logprobs = draw(_conclusions), draw(st.booleans()), draw(st.booleans())
    end = None if own else draw(st.none() | st.integers(4, 12))
    return Play(tuple(points), tuple(expansions), conclusion, is_by_line, own, has_logprobs, end)


def params(kind: Kind, play: Play, **stops: Any) -> Any:
    """Sampling parameters, as upstream makes them of a request."""
    fields = {"stop": [], "stop_token_ids": [], "include_stop_str_in_output": False, "min_tokens": 0, "max_tokens": 99}
    fields |= {"logprobs": 1 if play.has_logprobs else None, **stops}
    return SimpleNamespace(output_kind=kind, n=1, extra_args={}, output_text_buffer_length=0, **fields)


def told(play: Play, random: Random, kind: Kind, **stops: Any) -> tuple[list[Any], Player]:
    """What a reader gets of an answer, and who has played it."""
    answer, player = OutlineAnswer(Asked(play.own, may_be_other=False)), Player(play, random)
    given = params(kind, play, **stops)
    given.extra_args = answer.attach(given.extra_args)
    assert OutlineAnswer.detach(given) is answer

    async def collect() -> list[Any]:
        return [each async for each in answer.read(results(player), known)]

    return [completion for each in asyncio.run(collect()) for completion in each.outputs], player


def joined(completions: list[Any]) -> tuple[str, list[int], list[Any], str | None, Any]:
    """The answer that completions add up to."""
    text = "".join(each.text for each in completions)
    token_ids = [token_id for each in completions for token_id in each.token_ids]
    logprobs = [entry for each in completions for entry in each.logprobs or ()]
    return text, token_ids, logprobs, completions[-1].finish_reason, completions[-1].stop_reason


class TestAnyAnswer:
    @given(plays(), st.randoms(use_true_random=False), st.integers())
    def test_it_is_what_the_join_has_made(self, play: Play, random: Random, seed: int) -> None:
        """In a stream and as a whole, with a logprob for each token; text and tokens of each delta go together."""
        stream, player = told(play, random, Kind.DELTA)
        text, token_ids, logprobs, reason, _ = joined(stream)
        (whole,), again = told(play, Random(seed), Kind.FINAL_ONLY)
        assert joined([whole]) == (text, token_ids, logprobs, reason, None)
        assert text == text_of(token_ids)
        assert len(logprobs) == (len(token_ids) if play.has_logprobs else 0)
        if player.answer:
            assert token_ids == player.answer
            assert reason == "length" if any(each.was_cut for each in player.expanded) else reason == "stop"
        so_far: list[int] = []
        for number, each in enumerate(stream):
            so_far += each.token_ids
            assert "".join(one.text for one in stream[: number + 1]) == text_of(so_far)
        assert again.answer == player.answer

    @given(
        plays(),
        st.randoms(use_true_random=False),
        st.lists(st.sampled_from(["a", "b:", "\n\n2", "x1", "\n\n", "2. ", "é"]), max_size=2),
        st.lists(st.sampled_from([*b"ab2:", *PIECES]), max_size=2),
        st.booleans(),
        st.integers(0, 6),
    )
    def test_it_ends_at_the_first_stop_in_reading_order(
        self, play: Play, random: Random, stop: list[str], stop_ids: list[int], is_included: bool, least: int
    ) -> None:
        """Which may lie between two expansions, or in a heading; the outline, which nobody reads, has none."""
        fields = {"stop": stop, "stop_token_ids": stop_ids, "include_stop_str_in_output": is_included}
        stream, _ = told(play, random, Kind.DELTA, **fields, min_tokens=least)
        text, token_ids, _, reason, stopped_by = joined(stream)
        whole, player = told(play, Random(1), Kind.FINAL_ONLY, **fields, min_tokens=least)
        assert joined(whole)[:2] == (text, token_ids)
        if stopped_by is not None:
            assert (stream[-1].segments, whole[0].segments, whole[0].tree_tokens) == ((), (), None)
        if player.answer:
            expected = expected_end(player.answer, stop, stop_ids, is_included, least)
            assert (text, token_ids, stopped_by) == expected
        assert reason == "stop" or stopped_by is None


def expected_end(
    token_ids: list[int], stop: list[str], stop_ids: list[int], is_included: bool, least: int
) -> tuple[str, list[int], Any]:
    """Where an answer ends, read from its beginning."""
    for number in range(1, len(token_ids) + 1):
        before, text = text_of(token_ids[: number - 1]), text_of(token_ids[:number])
        if number <= least:
            continue
        if token_ids[number - 1] in stop_ids:
            return (text if is_included else before), token_ids[:number], token_ids[number - 1]
        ends = [
            (index + len(each), order, each)
            for order, each in enumerate(stop)
            if (index := text.find(each, max(0, len(before) - len(each) + 1))) >= 0
        ]
        if ends:
            end, _, string = min(ends)
            return text[: end if is_included else end - len(string)], token_ids[:number], string
    return text_of(token_ids), token_ids, None


def choice(text: str, finish_reason: str | None = None, index: int = 0) -> Any:
    """A delta of a choice without a tree."""
    fields = {"index": index, "text": text, "token_ids": ids(text), "logprobs": None, "stop_reason": None}
    completion = SimpleNamespace(**fields, finish_reason=finish_reason, segments=(), tree_tokens=None)
    finished = finish_reason is not None
    return SimpleNamespace(outputs=[completion], child_deltas=(), waiting=(), prompt_token_ids=[], finished=finished)


def read(*outputs: Any, n: int = 1) -> list[Any]:
    """What is told of an answer that need not be an outline."""
    answer, given = OutlineAnswer(Asked()), params(Kind.DELTA, Play((), ()))
    given.n, given.extra_args = n, answer.attach({})
    OutlineAnswer.detach(given)

    async def engine() -> AsyncIterator[Any]:
        for each in outputs:
            if isinstance(each, Exception):
                raise each
            yield each

    async def collect() -> list[Any]:
        return [each async for each in answer.read(engine(), known)]

    return asyncio.run(collect())


class TestOrdinaryAnswer:
    @pytest.mark.parametrize("texts", [["So"], ["1", "9"], ["1.", "5"], ["1", "."], ["1"], ["\n1. a"], [""]])
    def test_what_begins_otherwise_is_none(self, texts: list[str]) -> None:
        """Nothing is told of it, since it is answered as any other request."""
        *before, last = texts
        with pytest.raises(NoOutline):
            read(*map(choice, before), choice(last, "stop"))

    def test_all_choices_begin_alike(self) -> None:
        """Or the request is answered without an outline."""
        with pytest.raises(NoOutline):
            read(choice("1. a"), choice("So", index=1), n=2)

    def test_an_end_that_is_repeated_tells_nothing_new(self) -> None:
        """Upstream repeats a finished choice with the outputs of others."""
        end = choice("1. a\n", "length")
        told_ = read(end, choice("1. b\n", index=1), end, choice("", "length", index=1), n=2)
        texts = [(each.index, each.text, each.finish_reason) for output in told_ for each in output.outputs]
        assert texts == [(0, "1. a\n", "length"), (1, "1. b", None), (1, "\n", "length")]

    def test_an_answer_may_end_with_its_engine(self) -> None:
        """As when it is aborted; nothing says that it has finished."""
        (told_,) = read(choice("1. a\n"))
        assert (told_.outputs[0].text, told_.finished) == ("1. a", False)

    def test_an_error_is_told(self) -> None:
        """As the engine's."""
        with pytest.raises(ValueError, match="too long"):
            read(ValueError("too long"))

    def test_an_outline_that_is_cut_is_text(self) -> None:
        """Its first line is told at once, and no mark."""
        (first, last) = read(choice("1. Sleep\n"), choice("2. W", "length"))
        assert [first.outputs[0].text, last.outputs[0].text] == ["1. Sleep", "\n2. W"]
        told_ = read(choice("1. Sleep\n2. Walk\n###", "stop"))
        assert [each.outputs[0].text for each in told_] == ["1. Sleep\n2. Walk"]


def test_without_a_limit_an_answer_has_none() -> None:
    """Neither has its tree."""
    given = params(Kind.DELTA, Play((), ()), max_tokens=None)
    given.extra_args = OutlineAnswer(Asked()).attach(None)
    assert OutlineAnswer.detach(given) is None, "nobody holds the answer"
    answer = OutlineAnswer(Asked())
    given.extra_args = answer.attach(None)
    assert json.dumps(given.extra_args), "servers log it"
    assert OutlineAnswer.detach(given) is answer
    assert answer.params.extra_args == {"tell_segments": 1}


def test_nothing_is_told_after_a_stop() -> None:
    """Also what ends the answer."""
    tape = Tape(Detokenizer(), Stops(("b",)))
    tape.append(ids("abc"), [None] * 3)
    tape.end_with(EOS, None)
    assert (tape.whole.text, tape.token_ids, tape.stopped_by) == ("a", ids("ab"), "b")


def test_no_client_can_send_an_answer() -> None:
    """A field of its name is a client's own."""
    given = params(Kind.DELTA, Play((), ()))
    for value in (1, {"answer": 1}, "a-name"):
        given.extra_args = {"sequence_hooks_answer": value}
        assert OutlineAnswer.detach(given) is None

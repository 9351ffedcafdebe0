# SPDX-License-Identifier: Apache-2.0
"""What the language model has answered, from the outputs of either engine: an answer in points, or what is wrong."""

from typing import Any

from language_task import PROMISE, SEPARATOR, SYNC, Answer, points_of

END_OF_OUTLINE = f"{SEPARATOR}{SYNC}"


class NotWhole(ValueError):
    """A tree that is not as the model was taught, and why."""


def answer_of(question: str, completion: Any, tokenizer: Any) -> Answer:
    """The answer of a finished completion whose tokens and children are those of `sequence_hooks.results`.

    Raises:
        NotWhole: there is no outline or closing sentence, or a sequence did not end by itself.
    """
    if not completion.children:
        raise NotWhole("it does not fork")
    if len(completion.joins) != 1:
        raise NotWhole(f"it joins {len(completion.joins)} times")
    (join,) = completion.joins
    points = _points(_text(completion.token_ids[: join.position], tokenizer))
    if len(points) != len(completion.children):
        raise NotWhole(f"{len(points)} points have {len(completion.children)} children")
    return Answer(
        question=question,
        points=points,
        expansions=tuple(_expansion(child, tokenizer) for child in completion.children),
        closing=_closing(completion, join.position + join.num_merged, tokenizer),
    )


def _points(text: str) -> tuple[str, ...]:
    if not text.endswith(END_OF_OUTLINE):
        raise NotWhole("its outline is not closed")
    lines = text.removesuffix(END_OF_OUTLINE).split("\n")
    if not all(line.endswith(PROMISE) for line in lines):
        raise NotWhole("a point has no promise")
    try:
        return points_of("\n".join(line.removesuffix(PROMISE) for line in lines))
    except ValueError:
        raise NotWhole("its outline is no list of points") from None


def _expansion(child: Any, tokenizer: Any) -> str:
    if child.finish_reason != "stop":
        raise NotWhole("a child does not end by itself")
    text = _text(child.result_token_ids, tokenizer)
    if not text.strip():
        raise NotWhole("a child says nothing")
    return text


def _closing(completion: Any, start: int, tokenizer: Any) -> str:
    if completion.finish_reason != "stop":
        raise NotWhole("it does not end by itself")
    text = _text(completion.token_ids[start:], tokenizer).removesuffix(tokenizer.eos_token).strip()
    if not text:
        raise NotWhole("it has no closing sentence")
    return text


def _text(token_ids: Any, tokenizer: Any) -> str:
    return str(tokenizer.decode(list(token_ids), skip_special_tokens=False))

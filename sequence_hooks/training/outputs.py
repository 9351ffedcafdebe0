# SPDX-License-Identifier: Apache-2.0
"""Trees of token ids from what an engine returns."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Protocol

from sequence_hooks.results import ChildOutput, Join, Segment
from sequence_hooks.training.token_tree import TokenTree
from sequence_hooks.tree.replacement import replaced_ranges


class FinishedOutput(Protocol):
    """The fields of either engine's ``RequestOutput`` that are read here."""

    request_id: str
    prompt_token_ids: list[int] | None
    outputs: list[Any]
    """Each is a ``CompletionOutput`` of that engine."""

    finished: bool


def token_trees(output: FinishedOutput) -> list[TokenTree]:
    """The tree of each completion of a finished request.

    A tree is named like its request; with several completions, the index follows after a slash. Its log-probabilities
    are those that the engine has returned; request them by ``SamplingParams(logprobs=0)``.

    Raises:
        ValueError: the request has not finished, or its output lacks the prompt.
    """
    if not output.finished:
        raise ValueError(f"request {output.request_id} has not finished")
    if output.prompt_token_ids is None:
        raise ValueError(f"the output of request {output.request_id} has no prompt_token_ids")
    prompt, name = tuple(output.prompt_token_ids), output.request_id
    if len(output.outputs) == 1:
        return [_of_completion(name, prompt, output.outputs[0])]
    return [_of_completion(f"{name}/{each.index}", prompt, each) for each in output.outputs]


def _of_completion(name: str, prompt: tuple[int, ...], completion: Any) -> TokenTree:
    # Where results of detached children stand in the output, ``sampled`` is what it had as its context.
    own = completion if completion.sampled is None else completion.sampled
    token_ids = tuple(own.token_ids)
    return TokenTree(
        name=name,
        num_shared=0,
        prompt_token_ids=prompt,
        output_token_ids=token_ids,
        segments=_segments(own.segments, len(token_ids)),
        joins=completion.joins,
        result=(),
        logprobs=_logprobs(own.logprobs, token_ids),
        children=_of_children(completion.children, len(prompt), completion.joins),
    )


def _of_children(children: Iterable[ChildOutput], num_prompt: int, joins: Sequence[Join]) -> tuple[TokenTree, ...]:
    """Those of a sequence with these ``joins``, whose prompt has ``num_prompt`` tokens."""
    replaced = [(join.position, join.num_replaced) for join in joins if join.num_replaced]
    num_gone = [sum(count for position, count in replaced if position < child.spawn_position) for child in children]
    pairs = zip(children, num_gone, strict=True)
    return tuple(_of_child(child, num_prompt + child.spawn_position - gone) for child, gone in pairs)


def _of_child(child: ChildOutput, num_context: int) -> TokenTree:
    """A child that started when its parent's context had ``num_context`` tokens."""
    segments = _segments(child.segments, len(child.token_ids))
    return TokenTree(
        name=child.request_id,
        num_shared=child.num_shared,
        prompt_token_ids=child.prefix_token_ids,
        output_token_ids=child.token_ids,
        segments=segments,
        joins=child.joins,
        result=_result(child, segments),
        has_failed=_has_no_result(child),
        sees_parent=child.num_shared == num_context,
        logprobs=child.logprobs,
        children=_of_children(child.children, child.num_shared + len(child.prefix_token_ids), child.joins),
        spawn_position=child.spawn_position,
    )


def _has_no_result(child: ChildOutput) -> bool:
    """Whether it failed, or was cancelled before its end."""
    return child.failed or child.finish_reason == "cancelled"


def _segments(segments: tuple[Segment, ...], num_tokens: int) -> tuple[Segment, ...]:
    """A sequence that met no hook token reports no segments: it has sampled all of its output."""
    return segments or (Segment(0, num_tokens, "sampled"),) * (num_tokens > 0)


def _logprobs(entries: Any, token_ids: tuple[int, ...]) -> tuple[float, ...] | None:
    if entries is None:
        return None
    return tuple(float(entry[token_id].logprob) for entry, token_id in zip(entries, token_ids, strict=True))


def _result(child: ChildOutput, segments: tuple[Segment, ...]) -> tuple[int, ...]:
    """The positions of ``child.result_token_ids``: all but the tokens that ended it, the last ones that it sampled."""
    if _has_no_result(child):
        return ()
    end = max((segment.end for segment in segments if segment.origin == "sampled"), default=0)
    gone = set(chain.from_iterable(replaced_ranges(segments)))
    num_ending = len(child.token_ids) - len(child.result_token_ids) - len(gone)
    kept = (*range(end - num_ending), *range(end, len(child.token_ids)))
    positions = tuple(position for position in kept if position not in gone)
    if tuple(child.token_ids[position] for position in positions) != child.result_token_ids:
        raise ValueError(f"the result of {child.request_id} is not its output without the tokens that ended it")
    return positions

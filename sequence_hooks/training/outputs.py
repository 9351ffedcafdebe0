# SPDX-License-Identifier: Apache-2.0
"""Trees of token ids from what an engine returns."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

from sequence_hooks.results import ChildOutput, Join, Segment
from sequence_hooks.training.responses import Completion, completions_of
from sequence_hooks.training.token_tree import TokenTree
from sequence_hooks.tree.replacement import replaced_ranges


class FinishedOutput(Protocol):
    """The fields of either engine's ``RequestOutput`` that are read here."""

    request_id: str
    prompt_token_ids: list[int] | None
    outputs: list[Any]
    """Each is a ``CompletionOutput`` of that engine."""

    finished: bool


def token_trees(finished: FinishedOutput | Any, prompt_token_ids: Sequence[int] | None = None) -> list[TokenTree]:
    """The tree of each completion of a finished request.

    A tree is named as its children name their parent: like its request, with several completions by the index, too.
    Its log-probabilities are those that the engine has returned; ask for them by ``SamplingParams(logprobs=0)``, or as
    the server's route has it.

    Args:
        finished: What ``LLM`` or ``AsyncLLM`` returns, or a server's response to ``/v1/completions``,
            ``/v1/chat/completions`` or ``/inference/v1/generate``, as the client's object or as JSON, but no stream.
        prompt_token_ids: The prompt, where a response has none.

    Raises:
        ValueError: the request has not finished, or something is missing that its tree needs; the message says what to
            ask for.
    """
    if not hasattr(finished, "outputs"):
        return [_tree_of(each) for each in completions_of(finished, prompt_token_ids)]
    if not finished.finished:
        raise ValueError(f"request {finished.request_id} has not finished")
    prompt = finished.prompt_token_ids if prompt_token_ids is None else prompt_token_ids
    if prompt is None:
        raise ValueError(f"the output of request {finished.request_id} has no prompt_token_ids; give them")
    is_one = len(finished.outputs) == 1
    for_each = ((finished.request_id if is_one else f"{each.index}_{finished.request_id}") for each in finished.outputs)
    return [_tree_of(_completion(name, prompt, each)) for name, each in zip(for_each, finished.outputs, strict=True)]


def _completion(name: str, prompt: Sequence[int], given: Any) -> Completion:
    # Where results of detached children stand in the output, ``sampled`` is what it had as its context.
    own = given if given.sampled is None else given.sampled
    token_ids = tuple(own.token_ids)
    logprobs = _logprobs(own.logprobs, token_ids)
    return Completion(
        given.request_id or name,
        tuple(prompt),
        token_ids,
        logprobs,
        # Upstream's spans alone know the versions of the weights where no hook was met.
        own.segments or tuple(_by_version(getattr(given, "weight_versions", None) or ())),
        given.joins,
        given.children,
        given.has_older_kv,
        given.recomputed_at,
    )


def _by_version(spans: Iterable[Any]) -> Iterator[Segment]:
    return (Segment(span.start, span.end, "sampled", weight_version=span.version) for span in spans)


def _tree_of(completion: Completion) -> TokenTree:
    return TokenTree(
        name=completion.name,
        num_shared=0,
        prompt_token_ids=completion.prompt_token_ids,
        output_token_ids=completion.token_ids,
        segments=_segments(completion.segments, len(completion.token_ids)),
        joins=completion.joins,
        result=(),
        logprobs=completion.logprobs,
        children=_of_children(completion.children, len(completion.prompt_token_ids), completion.joins),
        has_older_kv=completion.has_older_kv,
        recomputed_at=completion.recomputed_at,
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
        has_older_kv=child.has_older_kv,
        recomputed_at=child.recomputed_at,
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

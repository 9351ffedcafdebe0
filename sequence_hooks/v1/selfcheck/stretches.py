# SPDX-License-Identifier: Apache-2.0
"""The tokens that each sequence of a tree has sampled, with the context of each stretch and their logprobs."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sequence_hooks.results import ChildOutput, Segment
from sequence_hooks.v1.frontend.outputs import CompletionOutput, RequestOutput
from sequence_hooks.v1.selfcheck.findings import Stretch


def stretches_of(output: RequestOutput) -> Iterator[Stretch]:
    """All stretches of a finished request's tree, parents first. Its results have to be merged whole."""
    (completion,) = output.outputs
    assert isinstance(completion, CompletionOutput) and completion.logprobs is not None
    token_ids = list(completion.token_ids)
    entries: Iterable[Any] = completion.logprobs
    logprobs = [entry[token_id].logprob for entry, token_id in zip(entries, token_ids, strict=True)]
    segments = completion.segments or (Segment(0, len(token_ids), "sampled"),)
    prompt = list(output.prompt_token_ids or ())
    yield from _of_sequence(output.request_id, prompt, token_ids, logprobs, segments, completion.children)


def _of_sequence(
    name: str,
    prompt: list[int],
    token_ids: list[int],
    logprobs: list[float],
    segments: Sequence[Segment],
    children: Sequence[ChildOutput],
) -> Iterator[Stretch]:
    for segment in segments:
        if segment.origin == "sampled":
            part = slice(segment.start, segment.end)
            yield Stretch(name, [*prompt, *token_ids[: segment.start]], token_ids[part], logprobs[part])
    merged = {segment.child: segment for segment in segments}
    for child in children:
        # A parent has its children's logprobs beside their tokens, and children tell only their tokens.
        segment = merged[child.request_id]
        context = [*prompt, *token_ids[: child.spawn_position], *child.prefix_token_ids]
        own, known = list(child.token_ids), logprobs[segment.start : segment.end]
        yield from _of_sequence(child.request_id, context, own, known, child.segments, child.children)

# SPDX-License-Identifier: Apache-2.0
"""The checks: what is done to an engine with hooks, and what it claims."""

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sequence_hooks.results import ChildOutput, Join, Segment
from sequence_hooks.text.messages import describe_error
from sequence_hooks.v1.frontend.outputs import CompletionOutput, RequestOutput
from sequence_hooks.v1.selfcheck.findings import Finding, Stretch
from sequence_hooks.v1.selfcheck.script import FORK_AT
from sequence_hooks.v1.selfcheck.trees import LENGTHS, LONGEST_PROMPT, Trees

Check = Callable[[Trees], Finding]
POINTS = (1, 3, 5, 7, 10, 13, 16, 19, 22, 26, 32)
"""The steps after which requests are aborted."""

OFFSETS = range(-2, 3)
"""How many tokens after the end of a block a fork is."""


def fork(trees: Trees) -> Finding:
    """Children start with their parent's KV, while it goes on."""
    _together(trees, "fork")
    return _finding(trees, "fork", "children read their parent's KV", num_children=2)


def ends(trees: Trees) -> Finding:
    """Forks a few tokens before and after the ends of blocks."""
    places = [(blocks, offset) for blocks in range(1, LONGEST_PROMPT + 1) for offset in OFFSETS if trees.fits(blocks)]
    for blocks, offset in places:
        trees.add(f"fork.{blocks}.{offset}", blocks, offset - FORK_AT)
    trees.run()
    seen = (
        f"{len(places)} forks within {max(OFFSETS)} tokens of one" if places else "max_model_len leaves room for none"
    )
    return _finding(trees, "ends", "a child may begin at the end of a block", num_children=2, seen=seen)


def join(trees: Trees) -> Finding:
    """A parent that kept its KV computes only what is new to it."""
    _together(trees, "again")
    outputs = list(trees.outputs.values())
    faults = [
        f"{name}: {each.num_prefill} tokens were computed at a resume, with {each.num_merged} merged"
        for name, each in _joins(outputs)
        if each.num_prefill != each.num_merged + 1 and not (trees.may_have_last and each.num_prefill == each.num_merged)
    ]
    claim = "a resume computes the merged tokens and one more"
    return _finding(trees, "join", claim, num_children=3, faults=faults)


def nested(trees: Trees) -> Finding:
    """Children that fork and join too."""
    _together(trees, "nested")
    return _finding(trees, "nested", "children have children", num_children=2)


def several(trees: Trees) -> Finding:
    """Trees of different kinds, of which each starts two steps after the last one."""
    names = [f"{kind}.{number}" for number in range(3) for kind in ("fork", "nested", "plain", "again")]
    for number, name in enumerate(names):
        trees.add(name, trees.lengths[number % len(trees.lengths)])
        trees.step()
        trees.step()
    trees.run()
    return _finding(trees, "several", "trees do not disturb each other, nor requests without any")


def pressure(trees: Trees) -> Finding:
    """More trees than there is KV cache for: waiting parents give up their KV, and recompute it."""
    before = trees.scheduler.evictor.num_recomputed
    with trees.scarce():
        for number in range(8):
            trees.add(f"again.{number}", LENGTHS[number % len(LENGTHS)])
        trees.run()
    num_recomputed = trees.scheduler.evictor.num_recomputed - before
    faults = [] if num_recomputed else ["no sequence has given up KV, so this says nothing"]
    seen = f"{num_recomputed} tokens of KV given up"
    return _finding(trees, "pressure", "KV that was given up is recomputed", num_children=3, faults=faults, seen=seen)


def aborts(trees: Trees) -> Finding:
    """Of three trees two are aborted, one of them later; then all of three."""
    faults: list[str] = []
    for point in POINTS:
        names = [f"{kind}.{point}" for kind in ("fork", "nested", "again")]
        for name in names:
            trees.add(name, 1.5)
        for _ in range(point):
            trees.step()
        trees.abort(names[:1])
        trees.step()
        faults += trees.imbalance()
        trees.abort(names[1:2])
        trees.run()
        faults += trees.leftovers()
    return _finding(trees, "aborts", "an aborted tree leaves nothing", faults=faults, seen=f"at {len(POINTS)} points")


CHECKS: tuple[Check, ...] = (fork, ends, join, nested, several, pressure, aborts)


def findings_of(trees: Trees) -> Iterator[Finding]:
    """Do all checks; the last one is the first that ends with an error."""
    for check in CHECKS:
        try:
            yield check(trees)
        except Exception as error:
            traceback.print_exc()
            yield Finding(check.__name__, "ends without an error", "", [], [describe_error(error)])
            return


def _together(trees: Trees, script: str) -> None:
    """One tree for each length of prompt, all at once."""
    for number, num_blocks in enumerate(trees.lengths):
        trees.add(f"{script}.{number}", num_blocks)
    trees.run()


def _finding(
    trees: Trees,
    name: str,
    claim: str,
    num_children: int | None = None,
    faults: Iterable[str] = (),
    seen: str = "",
) -> Finding:
    """What the requests that have finished tell; nothing may be left of them.

    Args:
        num_children: How many children each request must have; None if they differ.
    """
    outputs = trees.take_outputs()
    found = list(faults)
    for output in outputs:
        number = len(_completion(output).children)
        if num_children not in (None, number):
            found.append(f"{output.request_id} has {number} children, and should have {num_children}")
    found += trees.leftovers()
    stretches = [stretch for output in outputs for stretch in _stretches_of(output)]
    return Finding(name, claim, seen, stretches, found)


def _joins(outputs: Iterable[RequestOutput]) -> Iterator[tuple[str, Join]]:
    """All joins that were followed by another token, with the names of their sequences."""
    left: list[CompletionOutput | ChildOutput] = [_completion(output) for output in outputs]
    while left:
        each = left.pop(0)
        yield from ((str(each.request_id), join) for join in each.joins)
        left += each.children


def _completion(output: RequestOutput) -> CompletionOutput:
    (completion,) = output.outputs
    assert isinstance(completion, CompletionOutput)
    return completion


def _stretches_of(output: RequestOutput) -> Iterator[Stretch]:
    """All stretches of a finished request's tree, parents first. Its results have to be merged whole."""
    completion = _completion(output)
    assert completion.logprobs is not None
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

# SPDX-License-Identifier: Apache-2.0
"""The page of counts, as Markdown."""

from collections.abc import Iterator, Sequence

from benchmarks.speculation.measure import IN_SEQUENCE, NUM_DRAFTS, TREES, Counts

GOAL = 3.06
"""How many times fewer steps than in sequence: what HPD-Parsing reports of its time, by both together."""

INTRODUCTION = """# Trees and speculative decoding, in steps

Made by `make bench-speculation` with vLLM {version}, greedy, in float32 on a CPU. No machine and no other load changes
these counts. Each tree is grown with hooks. Then its sequences are sampled again by ordinary requests, one after the
other, from the same contexts and as many tokens each: "in sequence". At 4 or 16 at once, so many trees, or such chains
of requests, run side by side.

| column | |
| --- | --- |
| drafts | who drafts, up to {num_drafts} tokens for a step; "itself" is a second copy of the model, a bound of what a drafter can do |
| steps | of the engine; in brackets, how many times fewer than in sequence without drafts |
| tokens | that the model computed, prompts and rejected drafts included |
| accepted | of the drafted tokens; then, how many for each time that a sequence had drafts |
| taken back | tokens that were accepted after one that blocks its sequence |
| bound | the longest path of the trees, or chains, of each group, divided by one more than the tokens accepted at a time |
"""


def write_page(counts: Sequence[Counts]) -> str:
    """The page."""
    import vllm

    parts = [INTRODUCTION.format(version=vllm.__version__, num_drafts=NUM_DRAFTS)]
    for subject in dict.fromkeys(each.subject for each in counts):
        parts += _section(subject, [each for each in counts if each.subject == subject])
    return "\n".join(parts)


def _section(subject: str, counts: Sequence[Counts]) -> Iterator[str]:
    yield f"## {subject}\n"
    yield "| at once | way | drafts | steps | tokens | accepted | taken back | bound |"
    yield "| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for each in sorted(counts, key=lambda each: (each.size, each.way == TREES)):
        fewer = _without_drafts(counts, IN_SEQUENCE, each.size).steps / each.steps
        accepted = f"{each.accepted / each.drafted:.0%}, {each.accepted_per_step:.2f}" if each.drafted else "-"
        yield (
            f"| {each.size} | {each.way} | {each.drafter} | {each.steps:,} ({fewer:.2f}) | {each.tokens:,} | {accepted} "
            f"| {each.taken_back:,} | {each.bound:,.0f} |"
        )
    yield ""
    yield from _verdicts(counts)
    yield ""


def _verdicts(counts: Sequence[Counts]) -> Iterator[str]:
    """Whether both together take 3.06 times fewer steps than in sequence, and no more than trees alone."""
    for each in counts:
        if each.way == TREES and each.drafted:
            fewer = _without_drafts(counts, IN_SEQUENCE, each.size).steps / each.steps
            alone = _without_drafts(counts, TREES, each.size).steps
            is_met = "met" if fewer >= GOAL else "missed"
            is_fewer = "no more" if each.steps <= alone else f"{each.steps - alone} more"
            yield (
                f"- {each.size} at once, drafts by {each.drafter}: {fewer:.2f} times fewer steps than in sequence (goal "
                f"{GOAL}: {is_met}), and {is_fewer} than trees alone. {_differing(counts, each)}"
            )


def _differing(counts: Sequence[Counts], each: Counts) -> str:
    """How many trees of ``each`` sample other tokens than without drafts."""
    pairs = zip(each.texts, _without_drafts(counts, each.way, each.size).texts, strict=True)
    number = sum(ours != theirs for ours, theirs in pairs)
    return (
        f"{number or 'None'} of {len(each.texts)} trees differ{'s' if number == 1 else ''} from those without drafts."
    )


def _without_drafts(counts: Sequence[Counts], way: str, size: int) -> Counts:
    return next(each for each in counts if (each.way, each.size, each.drafter) == (way, size, "none"))

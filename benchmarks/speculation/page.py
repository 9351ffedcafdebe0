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
| drafts | who drafts up to {num_drafts} tokens a step; "itself" is a second copy of the model: none does better |
| steps | of the engine; in brackets, how many times fewer than in sequence without drafts |
| tokens | that the model computed, with rejected drafts, and with what prefix caching has not found of contexts |
| accepted | of the drafted tokens; then, how many for each time that a sequence had drafts |
| taken back | tokens of accepted runs after one that blocks or ends its sequence |
| bound | tokens on the longest path of each group's trees or chains, by 1 + those accepted at a time on average |

Where drafts on the longest path are better than the average, steps are fewer than the bound.
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
        cells = (each.size, each.way, each.drafter, f"{each.steps:,} ({fewer:.2f})", f"{each.tokens:,}", accepted)
        yield f"| {' | '.join(map(str, cells))} | {each.taken_back:,} | {each.bound:,.0f} |"
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
            yield f"- {each.size} at once, drafts by {each.drafter}: {fewer:.2f} times fewer steps than in sequence"
            yield f"  (goal {GOAL}: {is_met}), and {is_fewer} than trees alone. {_differing(counts, each)}"


def _differing(counts: Sequence[Counts], each: Counts) -> str:
    """How many trees of ``each`` sample other tokens than without drafts."""
    pairs = zip(each.texts, _without_drafts(counts, each.way, each.size).texts, strict=True)
    number = sum(ours != theirs for ours, theirs in pairs)
    return f"Of {len(each.texts)} trees {number} differ from those without drafts."


def _without_drafts(counts: Sequence[Counts], way: str, size: int) -> Counts:
    return next(each for each in counts if (each.way, each.size, each.drafter) == (way, size, "none"))

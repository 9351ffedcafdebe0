# SPDX-License-Identifier: Apache-2.0
"""Checks that trees, queues and blocks add up. Each error lists all the counts, so that the message alone is enough."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sequence_hooks.tree.branch import Branch


class IntegrityError(RuntimeError):
    """An engine's bookkeeping is inconsistent."""


@dataclass(frozen=True)
class Pool:
    """The blocks of one memory (the device's or swap space), and the sequences that hold them."""

    name: str
    num_total: int
    num_free: int
    """Free blocks, as the allocator counts them."""

    held: Mapping[str, Sequence[int]]
    """Block ids by holder: the block table of each sequence."""

    num_owners: Mapping[int, int]
    """The number of owners of each held block, by block id, as the allocator counts them."""

    def check(self) -> None:
        """Raise an `IntegrityError` unless free and held blocks add up to the pool, and all owners are known."""
        counted = Counter(block for blocks in self.held.values() for block in blocks)
        if self.num_free + len(counted) != self.num_total:
            raise IntegrityError(
                f"{self.name}: {self.num_free} blocks are free and {len(counted)} are held, of {self.num_total}\n"
                f"{self.report()}"
            )
        for block, count in counted.items():
            if self.num_owners[block] != count:
                raise IntegrityError(
                    f"{self.name}: block {block} is in {count} block tables, and its allocator counts "
                    f"{self.num_owners[block]} owners\n{self.report()}"
                )

    def report(self) -> str:
        """The blocks that each holder has, one line per holder."""
        lines = [f"  {holder}: {list(blocks)}" for holder, blocks in self.held.items()]
        return "\n".join([f"{self.name}: {self.num_free} of {self.num_total} blocks free", *lines])


def check_queues(queues: Mapping[str, Sequence[str]]) -> None:
    """Raise an `IntegrityError` if a sequence, named by its id, is in two queues or twice in one."""
    places = Counter(name for queue in queues.values() for name in queue)
    if twice := [name for name, count in places.items() if count > 1]:
        raise IntegrityError(f"{twice} are in several places\n{report_queues(queues)}")


def report_queues(queues: Mapping[str, Sequence[str]]) -> str:
    """One line per queue."""
    return "\n".join(["queues:", *(f"  {name}: {list(queue)}" for name, queue in queues.items())])


def report_trees(branches: "Iterable[Branch[Any]]") -> str:
    """One line per sequence."""
    lines = [
        f"{'  ' * branch.depth}{branch.request_id}: {branch.phase}, ended as {branch.outcome}, "
        f"{len(branch.sequence.prompt_token_ids)} + {len(branch.sequence.output_token_ids)} tokens, "
        f"{len(branch.unjoined)} of {len(branch.children)} children unjoined"
        for branch in branches
    ]
    return "\n".join(["trees:", *lines])


def faults_of(branch: Branch[Any]) -> Iterator[str]:
    """The faults of one branch of a tree, each phrased as the predicate of a sentence about it."""
    num_output, end = len(branch.sequence.output_token_ids), 0
    for segment in branch.segments:
        if segment.start != end or segment.end <= segment.start:
            yield f"has segments that do not follow each other: {branch.segments}"
        end = segment.end
    if end != num_output:
        yield f"has segments up to {end}, and {num_output} output tokens"
    if any(not (child.phase == "finished" or child.is_detached or child.is_unjoined) for child in branch.children):
        yield "is joined with a child that has not finished"
    limits, most = branch.tree.limits, branch.tree.limits.max_tree_sequences
    if branch.num_unfinished_children > limits.max_children:
        yield f"has {branch.num_unfinished_children} unfinished children, and may have {limits.max_children}"
    if branch.depth > limits.max_child_depth:
        yield f"has depth {branch.depth}, and may have {limits.max_child_depth}"
    if branch.parent is None and most is not None and branch.tree.num_sequences > most:
        yield f"has a tree of {branch.tree.num_sequences} sequences, and may have {most}"
    if branch.phase == "finished" and branch.outcome is None:
        yield "has finished, and it is not known how"
    if branch.paused_for_caller and branch.phase != "blocked":
        yield "waits for a caller, and is not blocked"
    if branch.outcome == "cancelled" and not branch.is_cancelled:
        yield "was cancelled, and its parent has not gone on without it"

# SPDX-License-Identifier: Apache-2.0
"""A finished tree of sequences as token ids: what a trainer starts from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sequence_hooks.results import Join, Origin, Segment
from sequence_hooks.tree.replacement import continued, replaced_ranges


@dataclass(frozen=True)
class TokenTree:
    """One sequence with its children. Positions count its output tokens.

    `sequence_hooks.training.token_trees` makes it of an engine's output, `sequence_hooks.training.encoded` of text.
    """

    name: str
    """Its request id; no other sequence of the tree has the same."""

    num_shared: int
    """Tokens of its parent's context, prompt and output, that its own context begins with; 0 for a root."""

    prompt_token_ids: tuple[int, ...]
    """The tokens that follow them: a root's prompt, a child's prefix."""

    output_token_ids: tuple[int, ...]
    segments: tuple[Segment, ...]
    """The origin of every output token, in order, and the version of the weights that it was sampled under, if the
    engine says so."""

    joins: tuple[Join, ...]
    result: tuple[int, ...]
    """The positions of the output tokens that its parent gets if it is merged."""

    has_failed: bool = False
    """Whether it was aborted, could never fit, or was cancelled before its end: no KV of it is injected."""

    sees_parent: bool = True
    """Whether a child's context begins with all that its parent had when it started: only then is its KV injected."""

    is_trained: bool = True
    """Whether what it sampled is a target. If not, its tokens are only context of whoever sees them."""

    logprobs: tuple[float, ...] | None = None
    """The engine's log-probability of each output token; None if it is unknown."""

    children: tuple["TokenTree", ...] = ()
    spawn_position: int = 0
    """Output tokens of its parent when it started, if any of them was replaced later."""

    has_older_kv: bool = False
    """See `sequence_hooks.results.ChildOutput`. After new weights it may have attended to KV of older ones, which no
    forward pass computes."""

    recomputed_at: tuple[int, ...] = ()
    """How many output tokens it had whenever its KV was given up with what had been injected, and computed again."""

    is_written: bool = False
    """Whether it was written as text: its joins say what an engine would prefill, and none has merged anything."""

    @property
    def num_prompt(self) -> int:
        """Tokens of its context before its output."""
        return self.num_shared + len(self.prompt_token_ids)

    @property
    def last_sampled(self) -> int:
        """The position of the last token that it sampled, -1 if it sampled none. From there on an engine has no KV."""
        return max((segment.end for segment in self.segments if segment.origin == "sampled"), default=0) - 1

    def walk(self) -> Iterator["TokenTree"]:
        """The sequence and its descendants, parents before children."""
        yield self
        for child in self.children:
            yield from child.walk()

    def num_injectable(self, join: Join) -> int:
        """How many tokens of a join have KV that a child has computed, if no KV is given up and a token follows."""
        last, count = join.position + join.num_merged - 1, 0
        for segment, child, positions in self.merged_by(join) if not join.num_replaced else ():
            if child is not None and child.has_kv_for_parent:
                # The very last token is computed in any case: the next one is sampled from it.
                num_taken = min(segment.end, last) - segment.start
                count += sum(position < child.last_sampled for position in positions[:num_taken])
        return count

    def merged_by(self, join: Join) -> Iterator[tuple[Segment, "TokenTree | None", Sequence[int]]]:
        """The segments that came with a join; with the child that each is of, if any, and the positions of its tokens
        in that child's output, of which those of a prefix are negative."""
        children = {child.name: child for child in self.children}
        positions: dict[tuple[Origin, str | None], Sequence[int]] = {}
        for name, child in children.items():
            positions["merged", name] = child.result
            positions["inserted", name] = range(-len(child.prompt_token_ids), 0)
        end = join.position + join.num_merged
        segments = [each for each in self.segments if join.position <= each.start < end]
        for segment, start in continued(segments, {key: len(each) for key, each in positions.items()}):
            within = positions.get((segment.origin, segment.child), ())
            found = None if segment.child is None else children[segment.child]
            yield segment, found, within[start : start + segment.end - segment.start]

    def index_of(self, position: int) -> int:
        """The index in its context of a token of its output, or of its prompt if it is negative."""
        gone = (len(gap) for gap in replaced_ranges(self.segments) if gap.start < position)
        return self.num_prompt + position - sum(gone)

    @property
    def has_kv_for_parent(self) -> bool:
        """Whether a parent may get its KV: it saw all that its parent had, and has ended by itself, but not with a join
        that has replaced something."""
        ends_replacing = bool(self.joins) and self.joins[-1].num_replaced > 0 and not self.joins[-1].num_prefill
        return self.sees_parent and not self.has_failed and not ends_replacing

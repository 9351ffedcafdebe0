# SPDX-License-Identifier: Apache-2.0
"""What a finished tree must hold: a reference that knows nothing of scheduling, for random walks of any engine."""

from collections.abc import Callable, Iterable
from typing import Any

from mytests.fuzz.handlers import NEWEST, OLDEST, REPLACE, Newest, Oldest, ReplacesLetters, named, replacement_of
from mytests.harness.characters import EOS, SYNC, ids
from mytests.harness.stepped import Sampling
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.tree.branch import Branch

SEPARATOR = ids("\n")
Placed = tuple[int, int]
"""A token, and its position."""

Span = list[tuple[int, int | None]]
"""The tokens of a child, with their positions in its context; or others."""

Pending = tuple[Branch[Any], int]
"""A child that is not joined yet, and the position of what followed its trigger."""


class Reference:
    """What finished sequences must hold, from the tokens fed to them and the rules of ends and merges alone.

    A sequence samples the same token at the same place whenever it is asked, as an engine may drop what was in flight.
    """

    def __init__(self, hooks: SpecialKwargs, max_len: int) -> None:
        self.hooks = hooks
        self.replaces = any(token == REPLACE for token, _ in hooks.named_handlers)
        self.max_len = max_len
        self.fed: dict[str, list[int]] = {}
        self.given: dict[str, list[list[int]]] = {}
        """What each sequence was resumed with."""

        self._num_prompt: dict[str, int] = {}
        self._max_tokens: dict[str, int] = {}
        """By the ids of requests, of which each sequence of the tree may sample as many."""

        self._ends_at_join: set[str] = set()

    def add(self, request_id: str, num_prompt: int, max_tokens: int, end_at_join: bool = False) -> None:
        if end_at_join:
            self._ends_at_join.add(request_id)
        most = self.hooks.max_tree_tokens
        self._num_prompt[request_id] = num_prompt
        self._max_tokens[request_id] = max_tokens if most is None else min(max_tokens, most)

    def feed(self, sampling: Sampling, draw: Callable[[], int]) -> int:
        """The token that a sequence samples, which is drawn if it has none for this place."""
        fed = self.fed.setdefault(sampling.request_id, [])
        assert sampling.num_sampled <= len(fed), f"{sampling} comes before a token that was never sampled"
        if sampling.num_sampled == len(fed):
            fed.append(draw())
        return fed[sampling.num_sampled]

    def give(self, request_id: str, token_ids: list[int]) -> None:
        """Note that a sequence that waits for its caller is resumed."""
        self.given.setdefault(request_id, []).append(token_ids)

    def output(self, request_id: str, tree: Branch[Any] | None) -> list[int]:
        """The tokens of a finished request, whose own branch is ``tree``; None if no hook has touched it."""
        return [token for token, _ in self._of_request(request_id, tree)]

    def positions(self, request_id: str, tree: Branch[Any]) -> list[int]:
        """The positions of a finished request's own context, prompt and output."""
        return [*range(self._num_prompt[request_id]), *(place for _, place in self._of_request(request_id, tree))]

    def _of_request(self, request_id: str, tree: Branch[Any] | None) -> list[Placed]:
        num_prompt = self._num_prompt[request_id]
        return self._output(request_id, request_id, num_prompt, num_prompt, tree)

    def _output(
        self,
        request_id: str,
        root_id: str,
        num_prompt: int,
        following: int,
        branch: Branch[Any] | None,
        as_output: bool = True,
    ) -> list[Placed]:
        """The output of a finished sequence, whose first token has the position ``following``; or its result: its
        context, without the EOS that ended it."""
        fed, given = self.fed.get(request_id, []), iter(self.given.get(request_id, []))
        if branch is not None and branch.tree.has_used_up:
            # How far each sequence has come by then is a matter of scheduling.
            fed = fed[: branch.num_sampled]
        out: list[Placed] = []
        context: list[Placed] = []
        pending: list[Pending] = []
        children = [] if branch is None else list(branch.children)
        first = following
        for number, token in enumerate(fed):
            out.append((token, following))
            context.append((token, following))
            following += 1
            while children and children[0].spec is not None and children[0].spec.position == len(out):
                child = children.pop(0)
                # What it comes to is in no context.
                pending += [] if child.is_detached else [(child, following)]
            end = len(out)
            num_sampled = number + 1
            has_sampled_all = len(context) < end and num_prompt + num_sampled >= self.max_len
            is_full = max(num_prompt + len(context), following) >= self.max_len or has_sampled_all
            ends = token == EOS or num_sampled == self._max_tokens[root_id] or is_full
            waits = token == SYNC and not ends
            awaited = self._named(token, pending, branch, end) if not ends else []
            if awaited:
                room = self.max_len - num_prompt - len(context)
                ends = request_id in self._ends_at_join
                fitting, following = self._placed(self._merged(awaited, root_id), following, room, ends)
                out += fitting
                context += fitting
                pending = [each for each in pending if each not in awaited]
                ends = ends or max(num_prompt + len(context), following) >= self.max_len
            replaces = self.replaces and token == REPLACE and not ends
            if replaces and branch is not None and branch.tree.has_used_up and num_sampled == len(fed):
                # It may be the token with which the budget was used up.
                replaces = any(join.num_replaced and join.position == end for join in branch.joins)
            new: tuple[int, ...] = ()
            if replaces:
                start, new = replacement_of(len(context) - 1, ReplacesLetters.words)
                before = context[start - 1][1] if start else first - 1
                following = max(before + 1, context[start][1])
                del context[start:]
            if ends or waits or replaces or num_sampled == len(fed) or self.hooks.block_on == "promise":
                if self._drops(pending, ends or not (waits or replaces), branch):
                    pending = []
                ends = ends or (bool(pending) and request_id in self._ends_at_join)
                merged = self._merged(pending, root_id)
                if replaces:
                    # Its children have seen what is not there any more.
                    merged = [[(each, None) for each, _ in span] for span in merged]
                spans = [_inserted(new), *merged, _inserted(next(given, []) if waits else [])]
                num_own = len(context)
                fitting, following = self._placed(spans, following, self.max_len - num_prompt - num_own, ends)
                out += fitting
                context += fitting
                pending = []
                if token == EOS and not as_output:
                    del context[num_own - 1]
            if ends or max(num_prompt + len(context), following) >= self.max_len:
                break
        assert not children and not pending
        return out if as_output else context

    def _named(self, token: int, pending: list[Pending], branch: Branch[Any] | None, end: int) -> list[Pending]:
        """The child that a token waits for, before its sequence goes on.

        A tree that is used up while it waits joins all of its children at once, or none but those that it has named.
        """
        if branch is None or token not in (OLDEST, NEWEST):
            return []
        if branch.tree.has_used_up and _is_last(branch, end):
            num_joins = sum(join.position >= end for join in branch.joins)
            cancels = self.hooks.unjoined_at_end == "cancel"
            # With the token that has used up the budget its hook does nothing.
            if _are_cancelled(pending) if cancels else num_joins < 2:
                return []
        named_ones = named([child for child, _ in pending], (Oldest if token == OLDEST else Newest).__name__)
        return [each for each in pending if each[0] in named_ones]

    def _drops(self, pending: list[Pending], ends: bool, branch: Branch[Any] | None) -> bool:
        """Whether a sequence does without its unjoined children."""
        if self.hooks.unjoined_at_end != "cancel" or branch is None or not pending:
            return False
        blocks = self.hooks.block_on == "promise"
        # The token that has used up the budget may be one that would wait.
        drops = (ends and not blocks) or (branch.tree.has_used_up and _are_cancelled(pending))
        assert not drops or _are_cancelled(pending)
        return drops

    def _placed(self, spans: list[Span], following: int, room: int, ends: bool) -> tuple[list[Placed], int]:
        """What is merged of ``spans``, and the position of what follows it; a sequence that ends has no such positions
        of its own."""
        flat = [(token, place, number) for number, span in enumerate(spans) for token, place in span][:room]
        last = flat[-1][2] if flat and flat[-1][1] is None else None
        overlaps = self.hooks.position_rule == "overlap" and not ends
        placed: list[Placed] = []
        position = furthest = following - 1
        is_in_last = False
        for token, place, number in flat:
            if overlaps and number == last and not is_in_last:
                is_in_last, position = True, furthest
            position = place if overlaps and place is not None else position + 1
            if position >= self.max_len:
                break
            furthest = max(furthest, position)
            placed.append((token, position))
        is_cut = len(placed) < len(flat) or len(placed) == room or furthest + 1 >= self.max_len
        if is_cut or ends:
            # It computes none of them.
            own = [(token, following + number) for number, (token, _) in enumerate(placed)]
            return own, self.max_len if is_cut else following + len(own)
        return placed, furthest + 1

    def _merged(self, awaited: list[Pending], root_id: str) -> list[Span]:
        joined = _first([child for child, _ in awaited], self.hooks.join_when)
        if self.hooks.child_merge_strategy == "none":
            return []
        results = [self._result(child, following, root_id) for child, following in awaited if child in joined]
        separator: Span = [(token, None) for token in SEPARATOR]
        return [span for result in results for span in (separator, result)][1:]

    def _result(self, child: Branch[Any], following: int, root_id: str) -> Span:
        assert child.spec is not None
        if child.has_failed:
            return []
        spec, num_prompt = child.spec, child.spec.num_prompt_tokens
        own = len(spec.prefix_token_ids)
        # What is before the trigger has its parent's positions, too.
        start = {"parent": following, "before_trigger": following - spec.num_trigger_tokens, "none": 0}[spec.context]
        output = self._output(child.request_id, root_id, num_prompt, start + own, child, as_output=False)
        return [(token, place if child.sees_parent else None) for token, place in output]


def _inserted(token_ids: Iterable[int]) -> Span:
    return [(token_id, None) for token_id in token_ids]


def _are_cancelled(pending: list[Pending]) -> bool:
    return all(child.is_cancelled for child, _ in pending)


def _is_last(branch: Branch[Any], end: int) -> bool:
    """Whether it has sampled nothing from ``end`` on."""
    return all(segment.origin != "sampled" for segment in branch.segments if segment.end > end)


def _first(awaited: list[Branch[Any]], join_when: int | None) -> list[Branch[Any]]:
    """Those of the children whose results are joined: so many, the first in spawn order of those that had one."""
    joined = [child for child in awaited if not child.is_cancelled]
    assert len(joined) == (len(awaited) if join_when is None else min(join_when, len(awaited)))
    too_late = [child.number for child in awaited if child.is_cancelled and child.outcome in ("stopped", "length")]
    has_result = [child.number for child in joined if not child.has_failed]
    assert not too_late or (len(has_result) == len(joined) and max(has_result) < min(too_late))
    return joined

# SPDX-License-Identifier: Apache-2.0
"""The expected tree of a finished request of the fuzzer, derived from its sampled tokens and the rules."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from mytests.fuzz.handlers import ReplacesWords, replacement_of
from mytests.fuzz.handlers import named as named_by
from mytests.fuzz.history import CLOSING, LAST
from mytests.fuzz.model import EOS
from mytests.fuzz.rules import Hook, Refusals, Rules, fired_by_id, fired_by_text, refusing
from mytests.fuzz.tree import Node, ends_by_token, find_stop
from mytests.harness.dialect import DIALECT
from sequence_hooks.results import ChildOutput, Join, Segment
from vllm import CompletionOutput


def check_tree(root: Node, rules: Rules) -> None:
    """Check that all spawns, joins, segments, limits and ends are those that the sampled tokens ask for."""
    nodes = list(root.walk())
    num_in_tree = sum(len(node.sampled) for node in nodes)
    assert len(nodes) <= rules.max_tree_sequences, f"{root.name} has a tree of {len(nodes)} sequences"
    assert num_in_tree <= rules.max_tree_tokens, f"{root.name} has a tree of {num_in_tree} tokens"
    refusals = Refusals()
    for node in nodes:
        _Replay(node, rules, num_in_tree, len(nodes), refusals).check()
        _check_unfinished_children(node, rules.max_children)
    assert isinstance(root.output, CompletionOutput)
    told = root.output.limits_met
    is_used_up = num_in_tree >= rules.max_tree_tokens
    if len(nodes) == 1 and num_in_tree == rules.max_tokens:
        # Its own limit may have ended it with the same token.
        is_used_up = is_used_up and "max_tree_tokens" in told
    refusals.check(root.name, told, is_used_up)


@dataclass
class _Replay:
    """Replays a sequence's sampled tokens, and derives what each of them does."""

    node: Node
    rules: Rules
    num_in_tree: int
    """The final number of tokens sampled in the whole tree."""

    num_sequences: int
    """The final number of sequences in the whole tree."""

    refusals: Refusals
    """By which limits each refused promise of the tree may have been refused."""

    context: list[int] = field(default_factory=list)
    """The positions of the output tokens that are in the context."""

    replaced: set[int] = field(default_factory=set)
    """The others."""

    in_a_row: int = 0
    """The position from which on all was sampled, one token after the other."""

    position: int = 0
    num_sampled: int = 0
    num_children: int = 0
    unjoined: list[Node] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    num_joins: int = 0
    text: str = ""
    merged_text_end: int = 0
    stop_reason: int | str | None = None

    def check(self) -> None:
        """Raise an `AssertionError` if the output differs."""
        node, ending = self.node, None
        while ending is None and self.position < len(node.tokens):
            ending = self._sample()
        if not node.tokens and self._may_be_cut():
            # It was waiting to be admitted.
            ending = "length"
        name, reason = node.name, node.output.finish_reason
        ending = None if ending == "abort" else ending
        assert reason == (ending or self._end_by_others()), f"{name} ended with {reason}"
        assert self.position == len(node.tokens), f"{name} has tokens behind its end at {self.position}"
        assert self.num_children == len(node.children), f"{name} has children that no promise spawned"
        assert self.num_joins == len(node.output.joins), f"{name} has joins that nothing asked for"
        told = _runs(node.segments, [each.is_replaced for each in node.segments for _ in range(each.start, each.end)])
        expected = _runs(self.segments, [position in self.replaced for position in range(self.position)])
        assert told == expected, f"{name}: {node.segments} should be {expected}"
        assert node.output.text == self.text, f"{name}: the text is {node.output.text!r} and should be {self.text!r}"
        if isinstance(node.output, ChildOutput):
            result = tuple(node.tokens[position] for position in node.result)
            assert node.output.result_token_ids == result, f"{name} has another result"
            assert node.output.failed == (reason == "abort"), f"{name}: failed is {node.output.failed}"
        else:
            assert node.output.stop_reason == self.stop_reason, f"{name} stopped by {node.output.stop_reason!r}"

    def _end_by_others(self) -> str:
        """How it ends where none of its own tokens ends it."""
        was_cancelled = self.node.is_cancelled and self.node.output.finish_reason == "cancelled"
        may_cancel = self.rules.hooks.join_when is not None or self.rules.cancels_at_end
        assert not was_cancelled or may_cancel, f"{self.node.name} was cancelled by nobody"
        return "cancelled" if was_cancelled else "abort"

    def _sample(self) -> str | None:
        token = self.node.tokens[self.position]
        self._extend(1, "sampled")
        self.num_sampled += 1
        self.text += self.node.texts[self.position - 1]
        ending = self._ending(token)
        hook, num_tokens = self._fired()
        spawns = self._spawn(num_tokens if hook == "promise" else 0, ending)
        named = named_by(self.unjoined, self.rules.names) if hook == "sync" and self.rules.names else None
        syncs = hook == "sync" and named != []
        if named == []:
            self.refusals.add({"wait_for"}, has_ended=ending is not None)
        if ending is None and self._may_be_cut():
            return self._cut(syncs, named)
        replaces = syncs and self.rules.replaces
        waits = syncs or (spawns and self.rules.hooks.block_on == "promise")
        blocks = ending is None and waits
        if ending and self.rules.hooks.detaches and self.num_children and self.node.output.finish_reason == "abort":
            # It was aborted while it waited for detached children at its end.
            return "abort"
        if not blocks and not (ending and self.unjoined):
            return ending
        if ending and self.rules.cancels_at_end:
            return self._drop(ending)
        joins = self.node.output.joins
        if self.num_joins == len(joins):
            return "abort"
        is_full = self._join(joins[self.num_joins], ending, replaces and blocks, named if ending is None else None)
        if is_full and self.unjoined and self.rules.cancels_at_end:
            return self._drop("length")
        if is_full and self.unjoined:
            # A join by name has filled it, and it waits for its other children.
            if self.num_joins == len(joins):
                return "abort"
            self._join(joins[self.num_joins], "length", replaces=False)
        return ending or ("length" if is_full else None)

    def _may_be_cut(self) -> bool:
        """Whether its tree may have ended here: it has, and the sequence has sampled no more."""
        is_used_up = self.num_in_tree >= self.rules.max_tree_tokens
        is_last = self.num_sampled == len(self.node.sampled)
        return is_used_up and is_last and self.node.output.finish_reason == "length"

    def _cut(self, waits: bool, named: list[Node] | None) -> str:
        """Check the end of a sequence with its tree, with its last token or after it, before or after its join."""
        joins = self.node.output.joins
        if self.rules.cancels_at_end:
            # With the token that has used up the budget its hook does nothing.
            waits = waits or self.rules.hooks.block_on == "promise"
            if waits and self.num_joins < len(joins):
                join = joins[self.num_joins]
                self._join(join, None if join.num_prefill else "length", join.num_replaced > 0, named)
            return self._drop("length")
        if named and len(joins) - self.num_joins > 1:
            # It has got what it has named, and its tree ends before its next token.
            join = joins[self.num_joins]
            self._join(join, None if join.num_prefill else "length", replaces=False, named=named)
            waits = False
        if self.unjoined or (waits and self.num_joins < len(joins)):
            assert self.num_joins < len(joins), f"{self.node.name} ends without its children's results"
            join = joins[self.num_joins]
            # With the token that has used up the budget its hook does nothing.
            self._join(join, None if join.num_prefill else "length", join.num_replaced > 0)
        return "length"

    def _drop(self, ending: str) -> str:
        """Check that at its end its unjoined children are cancelled; it may have been aborted or cancelled itself."""
        if self.node.output.finish_reason in ("abort", "cancelled"):
            return "abort"
        left = [child.name for child in self.unjoined if not child.is_cancelled]
        assert not left, f"{self.node.name} ends with {ending}, and {left} are neither joined nor cancelled"
        self.unjoined = []
        return ending

    def _ending(self, token: int) -> str | None:
        params = self.node.params
        new = self.node.texts[self.position - 1]
        is_last = ends_by_token(token, self.num_sampled, params)
        if is_last:
            self.stop_reason = token if token in params.stop_token_ids and not self._is_eos(token) else None
            self.text = self.text[: len(self.text) - len(new) * (not params.include_stop_str_in_output)]
            if not (DIALECT.stop_strings_within_stop_tokens and params.include_stop_str_in_output):
                return "stop"
        least = min(params.min_tokens, self.rules.max_tree_tokens)
        found = find_stop(self.text[self.merged_text_end :], len(new), params)
        if found is not None and self.num_sampled >= least + DIALECT.least_for_stop_string:
            self.stop_reason, kept = found
            self.text = self.text[: self.merged_text_end + kept]
            return "stop"
        if is_last:
            return "stop"
        room = self.rules.max_model_len - len(self.node.prompt)
        is_full = len(self.context) + self._lead() >= room or (bool(self.replaced) and self.num_sampled >= room)
        return "length" if is_full or self.num_sampled == self.rules.max_tokens_of(self.node) else None

    def _lead(self) -> int:
        return self.rules.leads.get(self.node.name, {}).get(self.position, 0)

    def _is_eos(self, token: int) -> bool:
        return token == EOS and not self.node.params.ignore_eos

    def _fired(self) -> tuple[Hook | None, int]:
        """The hook that the last token fires, and the number of tokens in its trigger."""
        if not self.rules.params.hooks:
            return None, 0
        promise = self.rules.hooks.promise_token
        if promise is None:
            return fired_by_id(self.node.tokens[self.position - 1])
        return fired_by_text(promise, self.node.tokens[self.in_a_row : self.position])

    def _spawn(self, num_trigger_tokens: int, ending: str | None) -> bool:
        """Check what a promise of ``num_trigger_tokens`` spawned, or that nothing was if they are none."""
        name, prefixes = self.node.name, self.rules.hooks.child_prefixes
        num_context = len(self.node.prompt) + len(self.context)
        num_shared = {"parent": num_context, "before_trigger": num_context - num_trigger_tokens, "none": 0}
        shared = num_shared[self.rules.hooks.child_context]
        lead = self._lead() if shared else 0
        room = self.rules.max_model_len - shared - lead - max(map(len, prefixes))
        may_spawn = num_trigger_tokens > 0 and self.node.depth < self.rules.max_child_depth and room > 0
        may_spawn = may_spawn and ending is None and self._num_at_least() < self.rules.max_tree_tokens
        # How many detached ones had ended by then, the tree does not say.
        num_unfinished = self.num_children if self.rules.hooks.detaches else len(self.unjoined)
        must_spawn = may_spawn and num_unfinished + len(prefixes) <= self.rules.max_children
        must_spawn = must_spawn and self.num_in_tree < self.rules.max_tree_tokens
        must_spawn = must_spawn and self.num_sequences + len(prefixes) <= self.rules.max_tree_sequences
        spawned = [child for child in self.node.children if child.output.spawn_position == self.position]
        choices = {len(prefixes)} if must_spawn else {0, len(prefixes)} if may_spawn else {0}
        assert len(spawned) in choices, f"{name} spawns {len(spawned)} at {self.position}, not {choices}"
        if spawned:
            first = self.num_children
            self.num_children += len(spawned)
            assert spawned == list(self.node.children[first : self.num_children])
            assert [child.output.prefix_token_ids for child in spawned] == list(prefixes)
            assert {child.output.num_shared for child in spawned} == {shared}
            assert [c.name for c in spawned] == [f"{name}_child_{first + i}" for i in range(len(spawned))]
        elif num_trigger_tokens:
            limits = refusing(self.node.depth, self.rules.max_child_depth, room)
            self.refusals.add(limits, has_ended=ending is not None)
        self.unjoined += [] if self.rules.hooks.detaches else spawned
        return bool(spawned)

    def _num_at_least(self) -> int:
        """A lower bound on the tokens sampled in the tree so far: its own, and those of its joined children."""
        if self.rules.hooks.detaches:
            return self.num_sampled - 1
        joined = [child for child in self.node.children[: self.num_children] if child not in self.unjoined]
        return self.num_sampled - 1 + sum(len(node.sampled) for child in joined for node in child.walk())

    def _join(self, join: Join, ending: str | None, replaces: bool, named: list[Node] | None = None) -> bool:
        """Check a join with all children, or with those that are ``named``; returns whether it fills the model."""
        awaited = self.unjoined if named is None else named
        start, num_cut, pieces = self.position, 0, list(self._pieces(awaited))
        kept_from, words = len(self.context), tuple[int, ...]()
        if replaces:
            kept_from, words = replacement_of(len(self.context) - 1, ReplacesWords.words)
        num_replaced = len(self.context) - kept_from
        self.replaced.update(self.context[kept_from:])
        del self.context[kept_from:]
        room = self.rules.max_model_len - len(self.node.prompt) - len(self.context)
        # The model may have no such positions, while it has room for as many tokens.
        room = min(room, join.num_merged) if self.rules.overlaps and join.num_cut else room
        for tokens, origin, child in [(words, "inserted", None), *pieces]:
            kept = tokens[: room - (self.position - start)]
            num_cut += len(tokens) - len(kept)
            found = self.node.tokens[self.position : self.position + len(kept)]
            assert found == kept, f"{self.node.name}: {found} at {self.position} should be {kept} of {child}"
            self.text += "".join(self.node.texts[self.position : self.position + len(kept)])
            self._extend(len(kept), origin, child)
        num_merged = self.position - start
        ends = ending is not None or num_merged == room or (self.rules.overlaps and not join.num_prefill)
        num_context = len(self.node.prompt) + len(self.context)
        prefills = {0} if ends else {num_context - kept for kept in self._kept(num_context, num_merged, replaces)}
        assert join.num_prefill in prefills, f"{self.node.name}: {join} should prefill {prefills}"
        # The oracle of injected KV knows which.
        injected = join.injected if self.rules.hooks.injects_kv else ()
        expected = Join(start, num_merged, num_cut, num_context, join.num_prefill, None, num_replaced, injected)
        assert join == expected, f"{self.node.name}: {join} should be {expected}"
        self.merged_text_end = len(self.text)
        self.in_a_row = self.position if num_merged or num_replaced else self.in_a_row
        self.num_joins += 1
        self.unjoined = [child for child in self.unjoined if child not in awaited]
        return num_merged == room or (self.rules.overlaps and not join.num_prefill)

    def _kept(self, num_context: int, num_merged: int, replaces: bool) -> Iterable[int]:
        """How many tokens of a context may have their KV after a join."""
        if self.rules.hooks.injects_kv:
            # The oracle of injection says what it is.
            return range(num_context)
        before = num_context - num_merged
        # Of what was kept, the last token is computed again if nothing follows it.
        most = min(before - (not replaces), num_context - 1)
        ahead = {before} if self.rules.state_is_ahead and num_merged and not replaces else ()
        return most, *ahead, *range(0, most + 1, self.rules.block_size)

    def _pieces(self, awaited: list[Node]) -> Iterator[tuple[tuple[int, ...], str, str | None]]:
        joined, most = [child for child in awaited if not child.is_cancelled], self.rules.hooks.join_when
        num_joined = len(awaited) if most is None else min(most, len(awaited))
        assert len(joined) == num_joined, f"{self.node.name} is joined with {len(joined)} of {len(awaited)} children"
        if self.rules.hooks.child_merge_strategy == "none":
            return
        prefixes = self.rules.merges_prefixes
        for child in joined:
            assert isinstance(child.output, ChildOutput)
            if prefixes:
                yield child.output.prefix_token_ids, "inserted", child.name
            elif child is not joined[0]:
                yield self.rules.separator, "inserted", None
            yield tuple(child.tokens[position] for position in child.result), "merged", child.name
            if prefixes:
                yield (CLOSING,), "inserted", None
        if prefixes and joined:
            yield (LAST,), "inserted", None

    def _extend(self, length: int, origin: str, child: str | None = None) -> None:
        if length:
            self.segments.append(Segment(self.position, self.position + length, origin, child))  # type: ignore[arg-type]
        self.context += range(self.position, self.position + length)
        self.position += length


def _runs(segments: Iterable[Segment], are_replaced: Sequence[bool]) -> list[Segment]:
    """``segments`` of tokens of which some are replaced, with no two next to each other that could be one; without
    versions of weights, which are not changed."""
    runs: list[Segment] = []
    for segment in segments:
        for position in range(segment.start, segment.end):
            is_replaced, last = are_replaced[position], runs[-1] if runs else None
            # What was replaced may have gone in parts.
            is_next = position > segment.start or segment.origin == "sampled" or is_replaced
            of = segment.origin, segment.child, is_replaced
            if last and is_next and (last.origin, last.child, last.is_replaced) == of:
                runs[-1] = replace(last, end=position + 1)
            else:
                runs.append(Segment(position, position + 1, segment.origin, segment.child, is_replaced))
    return runs


def _check_unfinished_children(node: Node, limit: int) -> None:
    for index, child in enumerate(node.output.children):
        earlier = node.output.children[:index]
        unfinished = sum(sibling.finished_time > child.spawn_time for sibling in earlier)
        assert unfinished < limit, f"{node.name} had {unfinished + 1} unfinished children"

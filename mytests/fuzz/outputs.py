# SPDX-License-Identifier: Apache-2.0
"""The outputs of the fuzzer's requests: reassembled from all steps, and in both orders where children are detached."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mytests.fuzz.rules import fired_by_text
from mytests.fuzz.tree import Node, pieces
from sequence_hooks import SpecialKwargs
from sequence_hooks.results import ChildDelta, ChildOutput
from vllm import CompletionOutput, RequestOutput


@dataclass
class _Told:
    """What the outputs so far say about one completion."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None


class Stream:
    """The outputs of one request, checked against each other; ``final`` is the last one, with the contents of all."""

    def __init__(self, request_id: str, kind: str) -> None:
        self.final: RequestOutput | None = None
        self.num_outputs = 0
        self.child_deltas: list[ChildDelta] = []
        self._id, self._kind = request_id, kind
        self._told: dict[int, _Told] = {}
        self._prompt: list[int] | None = None
        self._prompt_logprobs: list[Any] | None = None
        self._completions: dict[int, CompletionOutput] = {}
        """The last of each sample: an engine may tell of each in an output of its own."""

    def take(self, output: RequestOutput) -> None:
        assert self.final is None, f"{self._id} goes on behind its end"
        self.child_deltas += output.child_deltas
        is_of_children = not output.outputs and bool(output.child_deltas)
        assert self._kind != "FINAL_ONLY" or output.finished or is_of_children, f"{self._id}: not only the final output"
        self.num_outputs += 1
        self._prompt = output.prompt_token_ids or self._prompt
        self._prompt_logprobs = output.prompt_logprobs or self._prompt_logprobs
        for completion in output.outputs:
            self._take(completion, self._told.setdefault(completion.index, _Told()))
            self._completions[completion.index] = completion
        if output.finished:
            self._finish(output)

    def _take(self, completion: CompletionOutput, told: _Told) -> None:
        where = f"{self._id}, completion {completion.index}"
        assert told.finish_reason in (None, completion.finish_reason), f"{where} ends with {completion.finish_reason}"
        told.finish_reason = completion.finish_reason
        tokens, logprobs = list(completion.token_ids), completion.logprobs
        if logprobs is not None and (self._kind == "DELTA" or completion.finished()):
            # Until the end, upstream's list keeps growing with the sequence.
            assert len(logprobs) == len(tokens), f"{where}: {len(logprobs)} logprobs of {len(tokens)} tokens"
        sampled = completion.sampled
        if sampled is not None and self._kind != "DELTA":
            # Nothing contradicts what was told before, if results of detached children are left out.
            told.text, told.token_ids = sampled.text, list(sampled.token_ids)
            told.logprobs = list(sampled.logprobs or [])
            return
        if self._kind == "DELTA":
            told.text += completion.text
            told.token_ids += tokens
            told.logprobs += logprobs or []
            return
        assert completion.text.startswith(told.text), f"{where}: {completion.text!r} does not go on from {told.text!r}"
        assert tokens[: len(told.token_ids)] == told.token_ids, f"{where}: {tokens} do not go on from {told.token_ids}"
        told.text, told.token_ids, told.logprobs = completion.text, tokens, list(logprobs or [])

    def _finish(self, output: RequestOutput) -> None:
        self.final = copy.copy(output)
        self.final.prompt_token_ids, self.final.prompt_logprobs = self._prompt, self._prompt_logprobs
        self.final.outputs = [copy.copy(each) for _, each in sorted(self._completions.items())]
        for completion in self.final.outputs:
            told = self._told[completion.index]
            completion.text, completion.token_ids = told.text, told.token_ids
            asks = completion.cumulative_logprob is not None
            completion.logprobs = told.logprobs if asks else None
            if completion.sampled is not None:
                completion.segments = completion.sampled.segments


def check_child_deltas(stream: Stream, roots: Sequence[Node], is_asked: bool) -> None:
    """Check that the deltas of children add up to what the trees say about them, or that there are none."""
    assert is_asked or not stream.child_deltas, "deltas of children that nobody asked for"
    for index, root in enumerate(roots if is_asked else ()):
        for parent in root.walk():
            for child in parent.children:
                _check_deltas_of(child, parent, index, stream.child_deltas)


def _check_deltas_of(child: Node, parent: Node, index: int, all_deltas: Sequence[ChildDelta]) -> None:
    deltas = [delta for delta in all_deltas if delta.request_id == child.name]
    text, tokens = "".join(delta.text for delta in deltas), tuple(t for delta in deltas for t in delta.token_ids)
    assert isinstance(child.output, ChildOutput)
    if child.output.failed:
        # No delta tells of an abort, nor of text that was held back until then.
        is_told = child.output.text.startswith(text) and tokens == child.tokens[: len(tokens)]
        assert is_told, f"{child.name}: deltas are {deltas}"
        return
    assert (text, tokens) == (child.output.text, child.tokens), f"{child.name}: deltas are {deltas}"
    places = {(delta.parent_id, delta.index, delta.spawn_position) for delta in deltas}
    assert places <= {(parent.name, index, child.output.spawn_position)}, f"{child.name}: deltas are {deltas}"
    reasons = [delta.finish_reason for delta in deltas]
    assert reasons == [None] * (len(deltas) - 1) + [child.output.finish_reason], f"{child.name}: ends are {reasons}"


Token = tuple[int, str | None]
"""A token, and the name of the sequence that has it in its output; None if none has."""


def check_assembled(root: Node, hooks: SpecialKwargs, separator: tuple[int, ...]) -> None:
    """Check both orders of a finished request with detached children."""
    output = root.output
    assert isinstance(output, CompletionOutput)
    if not any(node.children for node in root.walk()) or not hooks.detaches or output.finish_reason == "abort":
        assert output.assembled is None and output.sampled is None, f"{root.name} has two orders"
        return
    assert output.assembled is not None and output.sampled is not None, f"{root.name} has one order"
    assert tuple(output.sampled.token_ids) == root.tokens, f"{root.name}: as sampled, it is {output.sampled}"
    expected = [token for tokens in _by_position(root, hooks, separator) for token in tokens]
    told = output.assembled
    assert list(told.token_ids) == [token_id for token_id, _ in expected], f"{root.name}: it is {told.token_ids}"
    owners = [each.child or (None if each.origin == "inserted" else root.name) for each in told.segments]
    lengths = [each.end - each.start for each in told.segments]
    found = [owner for owner, length in zip(owners, lengths, strict=True) for _ in range(length)]
    assert found == [owner for _, owner in expected], f"{root.name}: its segments are {told.segments}"
    assert told.logprobs is None or len(told.logprobs) == len(expected), f"{root.name}: {len(told.logprobs)} logprobs"
    text = "".join(pieces([token_id for token_id, _ in expected], root.params, root.prompt))
    # What ended it may be left out of its text.
    assert text.startswith(told.text), f"{root.name}: its text is {told.text!r}, and its tokens are {text!r}"


def _by_position(node: Node, hooks: SpecialKwargs, separator: tuple[int, ...]) -> list[list[Token]]:
    """What stands for each token of a sequence."""
    inserted = {p for s in node.segments if s.origin == "inserted" and not node.depth for p in range(s.start, s.end)}
    owners = (None if position in inserted else node.name for position in range(len(node.tokens)))
    tokens: list[list[Token]] = [[each] for each in zip(node.tokens, owners, strict=True)]
    replaced: set[int] = set()
    for position in sorted({child.output.spawn_position for child in node.children}):
        start = position - _num_trigger_tokens(node, position, hooks)
        tokens[start:position] = [tokens[index] if index in replaced else [] for index in range(start, position)]
        replaced.update(range(start, position))
        for child in node.children if hooks.child_merge_strategy != "none" else ():
            if child.output.spawn_position != position:
                continue
            within = _by_position(child, hooks, separator)
            if child.name != _first_of(node, position):
                tokens[start] += [(token_id, None) for token_id in separator]
            tokens[start] += [token for index in child.result for token in within[index]]
    return tokens


def _num_trigger_tokens(node: Node, position: int, hooks: SpecialKwargs) -> int:
    """How many tokens the trigger has that ends at ``position``. Nothing is merged where children are detached."""
    return 1 if hooks.promise_token is None else fired_by_text(hooks.promise_token, node.tokens[:position])[1]


def _first_of(node: Node, position: int) -> str:
    return next(child.name for child in node.children if child.output.spawn_position == position)

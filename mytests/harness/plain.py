# SPDX-License-Identifier: Apache-2.0
"""Plain values in place of an engine's, handlers that ask for whatever a test says, and what the rules make of it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.limits import Limits
from sequence_hooks.handlers import Actions, Merged, TokenEvent, TokenHandler
from sequence_hooks.handlers.builtin import PromiseHandler
from sequence_hooks.handlers.triggers import TriggerMatch
from sequence_hooks.results import ChildOutput
from sequence_hooks.tree.branch import Branch, Phase
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.events import Spawned, TreeEvent
from sequence_hooks.tree.manager import DependencyManager
from sequence_hooks.tree.rules import Decision, Merge, Refusal, decide, join, joined
from sequence_hooks.tree.sequence import Outcome
from sequence_hooks.tree.weights import Weights

PROMISE, SYNC, EOS = 1, 2, 3
HOOKS = SpecialKwargs(promise_token_id=PROMISE, sync_token_id=SYNC, block_on="sync", merge_separator="")
LIMITS = Limits(max_child_depth=2, max_children=3, max_tree_sequences=None)


@dataclass
class PlainSequence:
    """A `TextSequence` that a test writes to."""

    request_id: str = "r"
    prompt_token_ids: list[int] = field(default_factory=lambda: [10, 11])
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    outcome: Outcome | None = None
    sampling_params: Any = field(default_factory=lambda: SimpleNamespace(extra_args=None))
    logprobs: Sequence[float] | None = None
    weights: Weights | None = None
    arrival_time: float | None = None

    @property
    def text(self) -> str:
        return "".join(f"<{token_id}>" for token_id in self.output_token_ids)

    @property
    def token_logprobs(self) -> Sequence[float] | None:
        return self.logprobs

    @property
    def finish_reason(self) -> str | None:
        return self.outcome


Trees = DependencyManager[PlainSequence]


def handler() -> TokenHandler:
    return PromiseHandler(HOOKS)


def spec(number: int = 0, parent: str = "r", **fields: Any) -> ChildSpec:
    """A child that a parent's first token spawns."""
    given: dict[str, Any] = {"request_id": f"{parent}_child_{number}", "parent_id": parent, "number": number}
    given |= {"position": 1, "num_trigger_tokens": 1, "num_shared": 3, "prefix_token_ids": ()}
    return ChildSpec(**{**given, "context": "parent", "is_detached": False, **fields})


def child_of(
    trees: Trees,
    parent: Branch[PlainSequence],
    spawned_by: TokenHandler,
    output: Sequence[int] = (),
    **fields: Any,
) -> Branch[PlainSequence]:
    """A child that is added to its tree, with this output so far, and these fields of its `ChildSpec`."""
    spawned = spec(len(parent.children), parent.request_id, **fields)
    return trees.spawn(parent, spawned, spawned_by, PlainSequence(spawned.request_id, output_token_ids=list(output)))


def end(trees: Trees, branch: Branch[PlainSequence], outcome: Outcome = "stopped") -> bool:
    """Have a sequence end with its last token, which is not part of its result if it stopped."""
    branch.sequence.outcome = outcome
    length = len(branch.sequence.output_token_ids)
    return trees.end(branch, range(length - 1, length) if outcome == "stopped" else range(0))


def merged(branch: Branch[PlainSequence], room: int = 100, vocab_size: int | None = None) -> Merge:
    """Do what an engine does at a join: append what the rules return."""
    sequence = branch.sequence
    num_context = len(sequence.prompt_token_ids) + len(sequence.output_token_ids)
    merge = join(branch, joined(branch), num_context + room, encode, vocab_size)
    for span in merge.spans:
        sequence.output_token_ids += span.token_ids
    return merge


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


@dataclasses.dataclass(frozen=True)
class Derived(SpecialKwargs):
    """What an engine may make of the configuration."""


class Tokenizer:
    """Knows two special tokens, and a token per other character."""

    unk_token_id = 0

    def get_vocab(self) -> dict[str, int]:
        return {"<promise>": 200, "<sync>": 201}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        names = {token_id: name for name, token_id in self.get_vocab().items()}
        return "".join(names.get(token_id, chr(token_id)) for token_id in token_ids)


class Pieces:
    """A tokenizer whose tokens are these texts; what it does not know it drops, as some do."""

    unk_token_id = None

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def ids(self, *texts: str) -> list[int]:
        return [self.texts.index(text) for text in texts]

    def get_vocab(self) -> dict[str, int]:
        return {text: token_id for token_id, text in reversed(list(enumerate(self.texts)))}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self.ids(*(character for character in text if character in self.texts))

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(self.texts[token_id] for token_id in token_ids)


class Noted(list[TreeEvent]):
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.phases: list[Phase] = []
        """That of the branch, at each event."""

    def note(self, branch: Branch[Any], event: TreeEvent) -> None:
        name = event.spec.request_id if isinstance(event, Spawned) else event.request_id
        assert branch.request_id == name
        self.append(event)
        self.phases.append(branch.phase)

    def take(self) -> list[TreeEvent]:
        """Return what it was told since the last call."""
        taken = list(self)
        self.clear()
        return taken


class Asks:
    """A handler that asks for whatever a test says."""

    def __init__(self, actions: Any, joined: Any = ()) -> None:
        self._actions, self._joined = actions, joined

    def on_token(self, event: TokenEvent) -> Actions:
        if isinstance(self._actions, BaseException):
            raise self._actions
        actions: Actions = self._actions
        return actions

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        if isinstance(self._joined, BaseException):
            raise self._joined
        joined: Merged = self._joined
        return joined


def branch_with(num_children: int = 0, num_sampled: int = 0, limits: Limits = LIMITS) -> Branch[PlainSequence]:
    """A sequence with two tokens of prompt, about to sample a hook token."""
    trees = Trees()
    branch = trees.add_root(PlainSequence(), limits)
    branch.sequence.output_token_ids += [20] * num_sampled
    for _ in range(num_children):
        child_of(trees, branch, handler())
    return branch


def decided(
    asks: TokenHandler,
    branch: Branch[PlainSequence] | None = None,
    vocab_size: int | None = 100,
) -> Decision | Refusal:
    """What it does, with room for nine tokens after the hook token, in a vocabulary of 100."""
    branch = branch or branch_with()
    output = branch.sequence.output_token_ids
    max_len = len(branch.sequence.prompt_token_ids) + len(output) + 10
    return decide(branch, PROMISE, TriggerMatch(asks, 1), output, max_len, vocab_size)


class Unshowable(Exception):
    """An exception whose message raises, too."""

    def __str__(self) -> str:
        raise RuntimeError("no message")

    __repr__ = __str__

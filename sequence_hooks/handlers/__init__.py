# SPDX-License-Identifier: Apache-2.0
"""What a hook token does: its handler is asked when the token is sampled, and when its children have finished.

Promise and sync have handlers with this interface (`builtin`); user-defined handlers are named in
`SpecialKwargs.handlers`. Only this package knows which token is which, and which text completes a trigger. A handler
decides and changes nothing, so it must not touch trees, queues or KV.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, get_args, runtime_checkable

from sequence_hooks.config.checks import check_choice, check_label, check_overrides
from sequence_hooks.config.choices import ChildContext
from sequence_hooks.results import ChildOutput


@dataclass(frozen=True)
class PrefixOf:
    """The tokens that a child's context has after its parent's, with the KV that the child has of them."""

    child: ChildOutput


Piece = int | str | ChildOutput | PrefixOf
"""A token id; a text, to be tokenized without special tokens; a child, which stands for its result's tokens; or what
its context begins with after its parent's."""

Merged = str | Sequence[Piece]
JoinFunction = Callable[[Sequence[ChildOutput]], Merged]
"""Turns finished children, in spawn order, into what is appended to their parent."""


@dataclass(frozen=True)
class UnjoinedChild:
    """A child whose result its parent may still get."""

    number: int
    """Its index among its parent's children, in spawn order, by which `Actions.wait_for` names it."""

    spawn_position: int
    """Output tokens of its parent at the spawn, including the token that spawned it."""


@dataclass(frozen=True)
class TokenEvent:
    """A hook token that was sampled, and that the engine has not acted on yet."""

    token_id: int
    request_id: str
    """The id of the sequence that sampled it: the request's own, or a child's."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    """The tokens of the context before this one and after the prompt, including merged ones, and those that begin the
    trigger if it has several tokens. What a join has replaced is not among them."""

    depth: int
    """0 for a request's own sequence, 1 for its children, and so on."""

    num_unfinished_children: int
    num_trigger_tokens: int = 1
    """The tokens that contain the trigger, this one included."""

    num_children: int = 0
    """How many children the sequence has spawned so far: the number of the next one."""

    unjoined: tuple[UnjoinedChild, ...] = ()
    """The children that it may still wait for, finished or not, in spawn order."""

    arguments: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What its request has given in ``SamplingParams.extra_args`` (``vllm_xargs`` on a server), read-only. A client may
    have sent any of it, so a handler checks what it uses."""


@dataclass(frozen=True)
class Spawn:
    """One child to spawn."""

    prefix_token_ids: tuple[int, ...] = ()
    """Tokens of its context that follow those of its parent; without its parent's trigger, it needs one at least."""

    sampling_params: Any = None
    """Used instead of its parent's: a complete ``SamplingParams`` of the engine, or a mapping of some of its fields,
    which take precedence over those of `SpecialKwargs.child_sampling_params`."""

    context: ChildContext = "parent"
    """What its context begins with, see `SpecialKwargs.child_context`."""

    is_detached: bool = False
    """Whether its parent neither waits for it nor sees it. Its result replaces the trigger in the request's output, and
    is in no sequence's context; only the end of the request waits for it."""

    label: str = ""
    """What it is about, in at most `MAX_LABEL` characters, for whoever is told of it: deltas and outputs, live pages,
    recordings, traces. No sequence reads it."""

    def __post_init__(self) -> None:
        check_overrides(self, "sampling_params")
        check_choice(self, "context", get_args(ChildContext))
        check_label(self, "label")


@dataclass(frozen=True)
class Actions:
    """What the engine does once the token is processed, unless the token ended its sequence. Default: nothing."""

    spawn: tuple[Spawn, ...] = ()
    """In spawn order. If they exceed ``max_child_depth`` or ``max_children``, the token is an ordinary one."""

    block: bool = False
    """Whether the sequence is BLOCKED until its children have finished."""

    await_resume: bool = False
    """Whether it is also BLOCKED until a caller resumes it."""

    is_malformed: bool = False
    """Whether what the token completes lacks what its notation demands, so that some or all of it spawns nothing. The
    caller is told, and it is counted."""

    replace_from: int | None = None
    """The first token that is cut from the context when the sequence goes on, as an index of the event's
    ``output_token_ids``, whose length is the index of the hook token itself; None if all stay. What the join appends
    comes in their place. Only for a sequence that is BLOCKED."""

    insert_token_ids: tuple[int, ...] = ()
    """What the join appends before the results of children. Only for a sequence that is BLOCKED."""

    wait_for: Sequence[int] | None = None
    """If it is BLOCKED: the numbers of the children that it waits for, whose results alone it gets; those that this
    token spawns may be among them. The others run on, and stay unjoined. None waits for all that are unjoined. If one
    has no unjoined child, the token is an ordinary one."""

    join_when: int | None = None
    """If it is BLOCKED: how many of these children have to finish with a result, before it goes on with so many
    results, the first in spawn order. The rest is cancelled. None is `SpecialKwargs.join_when`; a number that no wait
    reaches waits for all of them."""


@runtime_checkable
class TokenHandler(Protocol):
    """Decides what one token does, and joins the children that it spawned. It changes nothing itself.

    If either method raises, the error is logged, and only this token or these children are lost.
    """

    def on_token(self, event: TokenEvent) -> Actions:
        """The actions for the handler's token, which was just sampled."""

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """What to append to the parent of ``children``, which this handler spawned; finished, in spawn order.

        For detached children: what replaces the trigger that spawned them in the output.
        """

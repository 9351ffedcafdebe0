# SPDX-License-Identifier: Apache-2.0
"""What a caller learns about a request's tree. All positions count the output tokens of one sequence."""

from dataclasses import dataclass, field
from typing import Any, Literal

Origin = Literal["sampled", "merged", "inserted"]


@dataclass(frozen=True)
class Segment:
    """The output tokens ``start`` to ``end`` (exclusive), and where they come from."""

    start: int
    end: int
    origin: Origin
    """"sampled" by this sequence, "merged" from a child's own output, or "inserted": sampled by no sequence,
    like a separator, the text of a join function, or what `LLMEngine.resume_sequence` was given."""

    child: str | None = None
    """The child's request id, for "merged"; for "inserted" tokens, that of the child whose prefix they are, if any."""

    is_replaced: bool = False
    """Whether a later join has cut the tokens from the context. They stay in the output, where a caller may have read
    them already."""

    weight_version: str | None = None
    """The version of the weights under which a sequence sampled the tokens, as ``update_weight_version`` of upstream's
    engine names it: a range with two versions is two segments. None for "inserted" tokens, and where the engine counts
    no versions, as V0 and vLLM before 0.32."""


@dataclass(frozen=True)
class Join:
    """A BLOCKED sequence got what it waited for: its children's results, or nothing."""

    position: int
    """Output tokens before the join."""

    num_merged: int
    """Tokens appended, including inserted ones."""

    num_cut: int
    """Tokens left out because they would exceed the model's length."""

    num_context: int
    """Tokens in the context after the join, including the prompt."""

    num_prefill: int = 0
    """Tokens to compute before the next one can be sampled: the last sampled one, the merged ones that came
    without KV, and those whose KV was given up. 0 if the sequence ends with the join."""

    error: str | None = None
    """What a join function raised; its children then contribute no tokens."""

    num_replaced: int = 0
    """Tokens cut from the end of the context before it; they stay in the output, see `Segment.is_replaced`."""

    injected: tuple[tuple[int, int], ...] = ()
    """The merged tokens that came with the KV of a child, as ranges of the output: from, to (exclusive)."""


@dataclass(frozen=True)
class TreeTokens:
    """Counts of the tokens of a completion's tree that it did not sample itself. It sampled the rest of its output."""

    sampled_below: int
    """Tokens that its descendants have sampled, merged or not."""

    merged: int
    """Tokens of its output that a child sampled."""

    inserted: int
    """Tokens of its output that no sequence sampled."""

    replaced: int = 0
    """Tokens that it sampled and that are not in its output: triggers that results of detached children replace. What
    a join cuts from the context stays in the output, see `Segment.is_replaced`."""


@dataclass(frozen=True)
class Transcript:
    """A completion with detached children in one of its two orders: as it was sampled, which is its context after the
    prompt, or assembled, where results of detached children replace the triggers that spawned them."""

    text: str
    token_ids: tuple[int, ...]
    segments: tuple[Segment, ...]
    logprobs: Any
    """As in `CompletionOutput`."""


@dataclass(frozen=True)
class ChildOutput:
    """One child of a sequence, as it ended."""

    request_id: str
    spawn_position: int
    """Output tokens of its parent at the spawn, including the promise."""

    num_shared: int
    """Tokens of its parent's context, prompt and output, that its own context begins with."""

    prefix_token_ids: tuple[int, ...]
    """The tokens of its context that follow these."""

    is_detached: bool
    """Whether its parent neither waits for it nor sees it."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """The log-probability of each of ``token_ids``; None if its sampling parameters ask for no logprobs. They are
    numbers, unlike the dicts by token id in upstream's `CompletionOutput`: a child's alternatives are not kept."""

    result_token_ids: tuple[int, ...]
    """``token_ids`` without the EOS, stop token or stop string that ended it; empty if it failed, or was cancelled
    before its end."""

    finish_reason: str | None
    """As in `CompletionOutput`; "cancelled" if it was cancelled before its end."""

    failed: bool
    """Whether it was aborted or could never fit."""

    children: tuple["ChildOutput", ...]
    segments: tuple[Segment, ...]
    joins: tuple[Join, ...]
    spawn_time: float
    """Seconds since the epoch."""

    finished_time: float | None
    """Seconds since the epoch; None while it runs."""

    cancelled: bool = False
    """Whether its parent, or that of a sequence that it descends from, went on without it: see
    `SpecialKwargs.join_when`. It may have ended by itself before, as its ``finish_reason`` says."""

    label: str = ""
    """What it is about, as the handler that spawned it says; empty if it says nothing."""

    has_older_kv: bool = False
    """Whether it ran with KV that a pause of the engine has kept (``clear_cache=False``): if the weights were changed
    in that pause, tokens after it attend to KV of older weights."""

    recomputed_at: tuple[int, ...] = ()
    """As in `TreeFields`."""


@dataclass(frozen=True)
class ChildDelta:
    """What a child has sampled, or got from its own children, since its last delta.

    Its first one comes when it is spawned, and may be empty. Text and tokens go together: tokens whose text is still
    held back, since a character is incomplete or a stop string may have begun, come with a later one.
    """

    request_id: str
    parent_id: str
    """The request id of the sequence that spawned it."""

    index: int
    """The index of the completion that its tree belongs to (n > 1)."""

    spawn_position: int
    """Output tokens of its parent at the spawn, including the promise."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    """As in `CompletionOutput`; None except in its last delta."""

    label: str = ""
    """As in `ChildOutput`."""

    num_ending: int = 0
    """How many tokens at the end of its output are not part of its result: those that have ended it, or all of them if
    it has none. 0 except in its last delta."""

    logprobs: Any = field(default=None, compare=False, repr=False)
    """Those of ``token_ids``, as in `CompletionOutput`; None if its sampling parameters ask for none, and as a server
    tells it."""


@dataclass(frozen=True)
class Waiting:
    """A sequence that waits at its sync token until a caller resumes it."""

    request_id: str
    """What to resume it by."""

    parent_id: str | None
    """The request id of the sequence that spawned it; None for a completion's own."""

    index: int
    """The index of the completion that its tree belongs to (n > 1)."""

    position: int
    """Its output tokens so far, including the sync token."""

    text: str
    """The text of its output so far."""

    children: tuple[str, ...]
    """The request ids of the children that it waits for, too, in spawn order: it gets their results, or with
    ``join_when`` those of the first."""

    num_unfinished_children: int
    """How many of them have to finish yet, before it can go on."""

    since: float
    """When it began to wait, in seconds since the epoch."""


@dataclass
class TreeFields:
    """What the `CompletionOutput` of either engine has beside upstream's fields; all of it is empty if no hook fired.

    It is set in the output in which the completion has finished. Positions count its output tokens.
    """

    request_id: str | None = None
    """The id of the completion's own sequence, as its children, streams and waiting sequences name it; None if no hook
    fired."""

    children: tuple[ChildOutput, ...] = ()
    """The completion's own children, in spawn order."""

    segments: tuple[Segment, ...] = ()
    """The origin of every output token, in order. Set in earlier outputs too if the request has
    ``extra_args={"tell_segments": True}`` in its sampling parameters."""

    joins: tuple[Join, ...] = ()
    """The completion's joins with its children, in order."""

    tree_tokens: TreeTokens | None = None
    """How many tokens its children have sampled, and how many it got from joins. Set in earlier outputs too if the
    request has ``extra_args={"count_tree": True}`` in its sampling parameters."""

    limits_met: tuple[str, ...] = ()
    """What has refused a promise of its tree, in this order: limits by name, ``max_model_len`` among them; "malformed"
    for a block that is not as its notation has it, all or a part of which is ordinary text; "failed" for a hook that
    has raised, or asked for what cannot be; "wait_for" for a sync that names a child which its sequence has not, or
    which is joined already. ``max_tree_tokens`` has ended all sequences of the tree."""

    recomputed_at: tuple[int, ...] = ()
    """How many output tokens the completion had whenever its KV was given up with what had been injected. From then on
    its whole context was that of text, at the positions that it had; see also `Join.injected`."""

    sampled: Transcript | None = None
    """The completion as it was sampled, which is its context; None unless it has detached children."""

    assembled: Transcript | None = None
    """The completion with the results of detached children in place: what text, tokens and logprobs are, unless outputs
    are deltas. Segments are always its own. None unless it has detached children."""

    has_older_kv: bool = False
    """As in `ChildOutput`, of the completion's own sequence."""

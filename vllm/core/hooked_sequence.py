# SPDX-License-Identifier: Apache-2.0
"""V0's sequences in terms of the rules, and how to get from a sequence to its branch.

A `Branch` lives in the `DependencyManager` of its scheduler; its sequence refers back to it, as
``sequence.branch``. A sequence that no hook has touched has none.
"""

from collections.abc import Sequence as Ids

from sequence_hooks.results import Transcript
from sequence_hooks.serving.live.trees import Ordinary
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.injection_plan import InjectedKV, num_computed_alike
from sequence_hooks.tree.sequence import Outcome
from sequence_hooks.tree.told import ToldTokens
from sequence_hooks.tree.transcript import output_of
from vllm.core.sequence_data import output_ids, prompt_ids, release_context
from vllm.sequence import Sequence, SequenceGroup, SequenceStatus

_OUTCOMES: dict[SequenceStatus, Outcome] = {
    SequenceStatus.FINISHED_STOPPED: "stopped",
    SequenceStatus.FINISHED_LENGTH_CAPPED: "length",
    SequenceStatus.FINISHED_ABORTED: "failed",
    SequenceStatus.FINISHED_IGNORED: "failed",
}
# One that has failed was ignored: an aborted sequence waits for no children, so it never finishes later.
STATUSES = {outcome: status for status, outcome in _OUTCOMES.items() if status != SequenceStatus.FINISHED_ABORTED}
"""The status of a sequence that finishes after its children."""


class V0Sequence:
    """The one sequence of a sequence group; a `sequence_hooks.tree.port.EngineSequence`."""

    weights = None
    """Upstream counts no versions of its weights."""

    def __init__(self, group: SequenceGroup) -> None:
        self.group = group
        self.sampling_params = group.sampling_params
        """As requested. The group's own differ after a join: no prompt logprobs, another seed."""

        self.merged_text_end = 0
        """Characters of its text up to the end of what was merged last."""

        self.reported_wait = 0.0
        """When the wait for its caller began of which its stream was told last, in seconds since the epoch."""

        self.is_announced = False
        """Whether a stream has told of its spawn."""

        self.is_told = False
        """Whether a stream has told of its end."""

        self.told: ToldTokens | None = None
        """What a stream has told of its output; None if it has told nothing."""

        self.orders: tuple[Transcript, Transcript] | None = None
        """With detached children: its output as it was sampled, and assembled, once its tree has ended."""

    @property
    def seq(self) -> Sequence:
        """Upstream's sequence."""
        return self.group.first_seq

    @property
    def request_id(self) -> str:
        return self.group.request_id

    @property
    def prompt_token_ids(self) -> Ids[int]:
        return prompt_ids(self.seq.data)

    @property
    def output_token_ids(self) -> Ids[int]:
        return output_ids(self.seq.data)

    @property
    def num_computed_tokens(self) -> int:
        return self.seq.get_num_computed_tokens()

    @property
    def outcome(self) -> Outcome | None:
        return _OUTCOMES.get(self.seq.status)

    @property
    def arrival_time(self) -> float:
        return self.group.arrival_time

    @property
    def text(self) -> str:
        return self.seq.output_text

    @property
    def token_logprobs(self) -> list[float] | None:
        if self.sampling_params.logprobs is None:
            return None
        pairs = zip(self.output_token_ids, self.seq.output_logprobs, strict=True)
        return [entries[token_id].logprob for token_id, entries in pairs]

    @property
    def finish_reason(self) -> str | None:
        return SequenceStatus.get_finished_reason(self.seq.status)

    def release_context(self) -> None:
        """Keep the output, and the length of the context. With whole contexts, a request with many children would hold
        as many copies of its own."""
        seq, branch = self.seq, self.seq.branch
        # The output for its caller is made now, if no join has needed it.
        output_of(branch)
        seq.inputs = {**seq.inputs, "prompt": None, "prompt_token_ids": release_context(seq.data)}
        seq.tokens = None
        if not branch.tree.has_detached:
            seq.output_logprobs = []


V0Branch = Branch[V0Sequence]


def branch_of(group: SequenceGroup) -> V0Branch | None:
    """The branch of a group's one sequence; None if no hook has touched it."""
    return branch_of_seq(group.first_seq)


def ordinary_of(group: SequenceGroup, ended: float | None = None) -> Ordinary:
    """What is known of a request that no hook has touched."""
    seq = group.first_seq
    prompt, output = prompt_ids(seq.data), output_ids(seq.data)
    reason = SequenceStatus.get_finished_reason(seq.status)
    return Ordinary(group.request_id, group.sampling_params, prompt, output, group.arrival_time, ended, reason)


def branch_of_seq(seq: Sequence) -> V0Branch | None:
    """The branch of a sequence; None if no hook has touched it."""
    return getattr(seq, "branch", None)


def attach(branch: V0Branch) -> None:
    """Let upstream's sequence refer to its branch."""
    branch.sequence.seq.branch = branch


def root_group(group: SequenceGroup) -> SequenceGroup:
    """The group of the request, or of the sample (n > 1), whose tree ``group`` belongs to."""
    branch = branch_of(group)
    return group if branch is None else branch.root.sequence.group


def injected_into(seq: Sequence) -> InjectedKV | None:
    """Which of a sequence's KV was injected."""
    branch = branch_of_seq(seq)
    return None if branch is None else branch.injected


def num_alike(seq: Sequence) -> int:
    """How many tokens at the front of ``seq`` have the KV that any prefill of them would compute."""
    return num_computed_alike(seq.get_num_computed_tokens(), injected_into(seq))

# SPDX-License-Identifier: Apache-2.0
"""Decides what a sampled hook token does, and makes the requests of the children that it spawns."""

from collections.abc import Sequence
from dataclasses import dataclass

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.messages import FAULTS
from sequence_hooks.handlers import TokenEvent
from sequence_hooks.handlers.triggers import TriggerMatch, Triggers
from sequence_hooks.tree.child_params import combined
from sequence_hooks.tree.log import HookLog
from sequence_hooks.tree.rules import Decision, Effects, Refusal, Standing, apply, decide
from sequence_hooks.v1.core.params import Completion, child_params, inherit
from sequence_hooks.v1.core.sequence import V1Branch
from sequence_hooks.v1.core.spawn import make_child
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager


@dataclass(frozen=True)
class Decided:
    """What a hook token does, unless it ends its sequence."""

    decision: Decision
    params: tuple[SamplingParams, ...]
    """Those of each child."""


class Decider:
    """Asks the handlers of hook tokens. A handler that fails costs its token alone.

    Args:
        special_kwargs: Gives every token by its id.
    """

    def __init__(
        self,
        special_kwargs: SpecialKwargs,
        completion: Completion,
        max_model_len: int,
        vocab_size: int | None,
        grammars: StructuredOutputManager,
        log: HookLog,
    ) -> None:
        self.triggers = Triggers.of(special_kwargs, completion.tokenizer)
        self._for_children = special_kwargs.child_sampling_params
        self._completion = completion
        self._model_len = max_model_len
        self._vocab_size = vocab_size
        self._grammars = grammars
        self._log = log

    def decide(self, token_id: int, match: TriggerMatch, branch: V1Branch) -> Decided | None:
        """What to do about a hook token that is not yet in the output; None if it counts as an ordinary one."""
        sequence = branch.sequence
        event = TokenEvent(
            token_id,
            branch.request_id,
            tuple(sequence.prompt_token_ids),
            tuple(sequence.output_token_ids),
            branch.depth,
            branch.num_unfinished_children,
            match.num_tokens,
        )
        decision = decide(match.handler, event, self._standing(branch))
        if isinstance(decision, Refusal):
            self._log.refused(branch.request_id, token_id, decision)
            return None
        spawns = enumerate(decision.actions.spawn, len(branch.children))
        try:
            params = tuple(
                child_params(branch, combined(self._for_children, spawn.sampling_params, inherit), k, self._completion)
                for k, spawn in spawns
            )
        except FAULTS as error:
            self._log.failed(branch.request_id, token_id, error)
            return None
        return Decided(decision, params)

    def effects(self, decided: Decided, branch: V1Branch) -> tuple[Effects, Sequence[Request]] | None:
        """What the token does now that it is in the output, and the children's requests; None if they can't be made."""
        num_output, num_context = len(branch.sequence.output_token_ids), len(branch.sequence.request.all_token_ids)
        effects = apply(decided.decision, branch.request_id, len(branch.children), num_output, num_context)
        planned = zip(effects.children, decided.params, strict=True)
        try:
            # All are made before the tree learns of the first.
            return effects, [make_child(branch, plan, params, self._grammars) for plan, params in planned]
        except Exception as error:
            self._log.failed(branch.request_id, decided.decision.token_id, error)
            return None

    def _standing(self, branch: V1Branch) -> Standing:
        # A walk over the whole tree: only where it counts.
        num_sampled = 0 if branch.limits.max_tree_tokens is None else branch.num_sampled_in_tree
        num_context = len(branch.sequence.request.all_token_ids) + 1
        return Standing(
            depth=branch.depth,
            num_unfinished_children=branch.num_unfinished_children,
            num_sampled_in_tree=num_sampled,
            limits=branch.limits,
            num_context=num_context,
            room=self._model_len - num_context,
            vocab_size=self._vocab_size,
        )

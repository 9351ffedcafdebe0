# SPDX-License-Identifier: Apache-2.0
"""Decides what a sampled hook token does, and makes the requests of the children that it spawns."""

from collections.abc import Mapping
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.messages import FAULTS
from sequence_hooks.handlers.triggers import TriggerMatch, Triggers
from sequence_hooks.tree import rules
from sequence_hooks.tree.child_params import combined
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.log import HookLog
from sequence_hooks.tree.rules import Decision, Refusal
from sequence_hooks.v1.core.params import Completion, child_params, inherit
from sequence_hooks.v1.core.sequence import V1Branch
from sequence_hooks.v1.core.spawn import make_child
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager


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

    def decide(self, token_id: int, match: TriggerMatch, branch: V1Branch) -> Decision | None:
        """What to do about a hook token that is not yet in the output; None if it counts as an ordinary one."""
        output = branch.sequence.output_token_ids
        decision = rules.decide(branch, token_id, match, output, self._model_len, self._vocab_size)
        if isinstance(decision, Refusal):
            self._log.refused(branch.request_id, token_id, decision)
            return None
        return decision

    def children(self, decision: Decision, parent: V1Branch) -> list[Request] | None:
        """The requests of the children, now that the token is in their parent's output; None if they can't be made."""
        try:
            # All are made before the tree learns of the first.
            return [self._make_child(parent, spec, params) for spec, params in decision.children]
        except FAULTS as error:
            self._log.failed(parent.request_id, decision.token_id, error)
            return None

    def _make_child(
        self, parent: V1Branch, spec: ChildSpec, own_params: SamplingParams | Mapping[str, Any] | None
    ) -> Request:
        overrides = combined(self._for_children, own_params, inherit)
        params = child_params(parent, overrides, spec.number, self._completion)
        return make_child(parent, spec, params, self._grammars)

# SPDX-License-Identifier: Apache-2.0
"""What a worker drafts, and which drafts it accepts, where tokens are scripted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vllm.v1.outputs import DraftTokenIds

Choose = Callable[[str, list[int]], int]
"""The token that a request samples after its context."""

WRONG = 0
"""A draft that no sequence samples, as are upstream's placeholders in the rows of a request that has no drafts."""


@dataclass
class Drafter:
    """Drafts the tokens that are sampled next, but for every third one of a context."""

    num_drafts: int = 0
    proposed: dict[str, list[int]] = field(default_factory=dict)
    """Of each request after its last step; ``scheduled`` are those in a step."""

    scheduled: dict[str, list[int]] = field(default_factory=dict)

    def take_in(self, scheduled: Mapping[str, list[int]]) -> None:
        """Note which drafts a step has; where steps overlap, upstream's scheduler knows only how many they are."""
        known = {name: [*self.proposed.get(name, ()), *[WRONG] * len(given)] for name, given in scheduled.items()}
        self.scheduled = {
            name: known[name][: len(given)] if -1 in given else list(given) for name, given in scheduled.items()
        }

    def with_drafts(self, request_id: str, tokens: list[int]) -> list[int]:
        return [*tokens, *self.scheduled.get(request_id, ())]

    def accept(self, request_id: str, tokens: list[int], choose: Choose) -> list[int]:
        """The run that a request samples after its context."""
        run: list[int] = []
        for draft in [*self.scheduled.get(request_id, ()), WRONG]:
            run.append(choose(request_id, [*tokens, *run]))
            if run[-1] != draft:
                break
        return run

    def propose(self, request_id: str, tokens: list[int], choose: Choose) -> None:
        context, most = list(tokens), len(tokens) + self.num_drafts
        while len(context) < most and len(context) % 3:
            context.append(choose(request_id, context))
        self.proposed[request_id] = [*context[len(tokens) :], *[WRONG] * (most - len(context))]

    def take_proposed(self) -> DraftTokenIds:
        """Hand the drafts to the scheduler."""
        taken, self.proposed = self.proposed, {}
        return DraftTokenIds(list(taken), list(taken.values()))

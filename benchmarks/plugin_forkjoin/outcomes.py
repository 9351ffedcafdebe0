# SPDX-License-Identifier: Apache-2.0
"""What a run of one side has cost, and how sides compare, round by round."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.forkjoin.engine import Run
from benchmarks.forkjoin.plans import Plan
from benchmarks.plugin_forkjoin.steps import TreeSteps


@dataclass(frozen=True)
class Outcome:
    """One run of one plan. Times in seconds; the others depend neither on the machine nor on who else uses it."""

    model: str
    side: str
    plan: Plan
    round: int
    seconds: float
    """From the first request to the last token."""

    typical_end: float
    """Until half of the trees had ended."""

    late_end: float
    """Until 95 % of the trees had ended."""

    steps: int
    tokens: int
    """Tokens that the model computed."""

    peak_blocks: int
    """The most tokens' worth of KV in use at once, in blocks of 16 tokens."""

    round_trips: int
    """Calls that each tree takes, one after the other."""

    elsewhere: float
    """Cores that other processes kept busy during the run."""

    tree: TreeSteps

    @classmethod
    def of(cls, model: str, side: str, plan: Plan, number: int, run: Run, block_size: int) -> "Outcome":
        """What ``run`` has cost. The requests of a client's tree end with that for its tail."""
        tails = [end for name, end in run.ends.items() if name.endswith("/tail")]
        ends = sorted(tails or run.ends.values())
        return cls(
            model=model,
            side=side,
            plan=plan,
            round=number,
            seconds=run.seconds,
            typical_end=statistics.median(ends),
            late_end=ends[min(len(ends) - 1, round(0.95 * len(ends)))],
            steps=len(run.steps),
            tokens=sum(step.num_tokens for step in run.steps),
            peak_blocks=run.peak_blocks * block_size // 16,
            round_trips=3 if tails else 1,
            elsewhere=run.elsewhere,
            tree=TreeSteps.of(plan, run.steps),
        )


class Outcomes:
    """All outcomes of a run of the bench."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._all = outcomes

    @classmethod
    def saved(cls, outcomes: Iterable[Outcome], path: Path) -> "Outcomes":
        """All of ``outcomes``; each is written to ``path`` as it comes, for a run that is cut off."""
        told: list[Outcome] = []
        with path.open("w") as file:
            for each in outcomes:
                print(json.dumps(asdict(each)), file=file, flush=True)
                told.append(each)
        return cls(told)

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(each.model for each in self._all))

    @property
    def num_disturbed(self) -> int:
        """How many come from runs during which others used the machine."""
        return sum(each.elsewhere > 0.1 for each in self._all)

    @property
    def num_rounds(self) -> int:
        return 1 + max(each.round for each in self._all)

    def __len__(self) -> int:
        return len(self._all)

    def plans(self, model: str) -> list[Plan]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(each.plan for each in self._all if each.model == model))

    def of(self, model: str, side: str, plan: Plan) -> list[Outcome]:
        """Those of one side, by round."""
        found = [each for each in self._all if (each.model, each.side, each.plan) == (model, side, plan)]
        return sorted(found, key=lambda each: each.round)

    def seconds(self, model: str, side: str, plan: Plan) -> float:
        """The median of the rounds."""
        return statistics.median(each.seconds for each in self.of(model, side, plan))

    def gains(self, model: str, side: str, against: str, plan: Plan) -> list[float]:
        """How many times as fast ``side`` is as ``against``, in each round; none if one does not do the plan."""
        ones, others = self.of(model, side, plan), self.of(model, against, plan)
        return [other.seconds / one.seconds for one, other in zip(ones, others, strict=True)] if ones and others else []

    def shares(self, model: str, side: str, against: str, plan: Plan) -> list[float]:
        """How much of the time of children and join the batched steps of ``against`` would take, in each round."""
        pairs = zip(self.of(model, side, plan), self.of(model, against, plan), strict=True)
        told = [
            (one.tree, other.tree) for one, other in pairs if one.tree.children_and_join and other.tree.batched_step
        ]
        return [plan.lengths[0] * other.batched_step / one.children_and_join for one, other in told]

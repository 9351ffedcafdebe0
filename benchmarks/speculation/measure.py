# SPDX-License-Identifier: Apache-2.0
"""Counts what one engine takes for trees, and for the same tokens in sequence."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.speculation.trees import Part, Sampled, check, detached_parts, in_sequence, joined_parts

TREES, IN_SEQUENCE = "trees", "in sequence"
NUM_DRAFTS = 5
DRAFTERS: Mapping[str, Mapping[str, Any] | None] = {
    "none": None,
    "n-grams": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4},
    "itself": {"method": "draft_model"},
}
"""What drafts, by a name of its own; "itself" is the model, whose drafts are all right: a bound."""


@dataclass(frozen=True)
class Subject:
    """A model, its hooks, and what it is asked for.

    Attributes:
        most_groups: How many groups of prompts are measured of each size.
    """

    name: str
    model: Path
    hooks: Mapping[str, Any]
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    max_model_len: int
    most_groups: int
    fork_and_end: tuple[int, int] | None = None
    """The tokens at which a parent forks and ends, if it waits for nobody."""

    def groups(self, size: int) -> list[Sequence[tuple[int, ...]]]:
        """Prompts that are asked for at once."""
        starts = range(0, len(self.prompts) - size + 1, size)
        return [self.prompts[start : start + size] for start in list(starts)[: self.most_groups]]

    def parts(self, output: Any) -> list[Part]:
        """What a finished tree has sampled."""
        found = list(joined_parts(output) if self.fork_and_end is None else detached_parts(output, *self.fork_and_end))
        check(found)
        return found


@dataclass(frozen=True)
class Counts:
    """What some groups have taken together.

    Attributes:
        path: Tokens that have to be sampled one after the other, of the longest tree, or chain, of each group.
        drafts: How often a sequence had drafts in a step.
        texts: What was sampled, to be compared.
    """

    subject: str
    drafter: str
    way: str
    size: int
    steps: int
    tokens: int
    path: int
    drafts: int
    drafted: int
    accepted: int
    taken_back: int
    texts: tuple[Any, ...]

    @property
    def accepted_per_step(self) -> float:
        """Of a sequence that had drafts."""
        return self.accepted / self.drafts if self.drafts else 0.0

    @property
    def bound(self) -> float:
        """The steps that sequences would take which never wait for each other, with so many drafts accepted."""
        return self.path / (1 + self.accepted_per_step)


class Bench:
    """An engine whose steps are counted."""

    def __init__(self, subject: Subject, drafter: str) -> None:
        from forkjoin_engine import open_engine

        drafts = DRAFTERS[drafter]
        fields: dict[str, Any] = {}
        if drafts is not None:
            model = {"model": str(subject.model)} if drafts["method"] == "draft_model" else {}
            fields["speculative_config"] = {**drafts, **model, "num_speculative_tokens": NUM_DRAFTS}
        engine: Any = open_engine(
            {**subject.hooks, "hooks_on_request": True},
            model=str(subject.model),
            max_model_len=subject.max_model_len,
            max_num_seqs=256,
            disable_log_stats=False,
            **fields,
        )
        self._subject, self._drafter, self._engine = subject, drafter, engine
        self._steps: list[int] = []
        scheduler = engine.llm_engine.engine_core.engine_core.scheduler
        self._scheduler, schedule = scheduler, scheduler.schedule

        def counting(*args: Any, **kwargs: Any) -> Any:
            scheduled = schedule(*args, **kwargs)
            self._steps += [scheduled.total_num_scheduled_tokens] if scheduled.total_num_scheduled_tokens else []
            return scheduled

        scheduler.schedule = counting

    def measure(self, size: int) -> Iterator[Counts]:
        """The counts of both ways; the trees' come first, since what they sample is then sampled in sequence."""
        trees: list[list[list[Part]]] = []

        def grow(prompts: Sequence[tuple[int, ...]]) -> list[Any]:
            outputs = self._run([iter([(each, self._params(True, self._subject.max_tokens))]) for each in prompts])
            trees.append([self._subject.parts(chain[0]) for chain in outputs])
            return [(chain[0].outputs[0].token_ids, [each.token_ids for each in chain[0].outputs[0].children])
                    for chain in outputs]  # fmt: skip

        def repeat(group: list[list[Part]]) -> list[Any]:
            chains = [in_sequence(tree) for tree in group]
            outputs = self._run([map(self._plain, chain) for chain in chains])
            return [[each.outputs[0].token_ids for each in chain] for chain in outputs]

        counts = self._count(TREES, size, grow, self._subject.groups(size))
        path = sum(max(sum(part.longest_path for part in tree) for tree in group) for group in trees)
        yield replace(counts, path=path)
        counts = self._count(IN_SEQUENCE, size, repeat, trees)
        path = sum(max(sum(len(each.token_ids) for each in in_sequence(tree)) for tree in group) for group in trees)
        yield replace(counts, path=path)

    def _count(self, way: str, size: int, work: Callable[[Any], list[Any]], groups: Sequence[Any]) -> Counts:
        """What ``work`` takes for all ``groups``, for each with an empty prefix cache."""
        self._steps.clear()
        texts: list[Any] = []
        before = self._drafts()
        for group in groups:
            self._engine.reset_prefix_cache()
            texts += work(group)
        drafts, drafted, accepted, taken_back = (now - then for now, then in zip(self._drafts(), before, strict=True))
        steps, tokens = len(self._steps), sum(self._steps)
        names = (self._subject.name, self._drafter, way)
        return Counts(*names, size, steps, tokens, 0, drafts, drafted, accepted, taken_back, tuple(texts))

    def _drafts(self) -> tuple[int, ...]:
        found = {each.name: getattr(each, "value", 0) for each in self._engine.get_metrics()}
        counters = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "taken_back_tokens")
        return tuple(int(found.get(f"vllm:spec_decode_{name}", 0)) for name in counters)

    def _run(self, chains: Sequence[Iterator[tuple[tuple[int, ...], Any]]]) -> list[list[Any]]:
        """The outputs of chains of requests, of which each has one request at a time."""
        engine: Any = self._engine.llm_engine
        outputs: list[list[Any]] = [[] for _ in chains]

        def begin(number: int) -> None:
            for context, params in chains[number]:
                name = f"{number} {len(outputs[number])} {len(self._steps)}"
                engine.add_request(name, {"prompt_token_ids": list(context)}, params)
                return

        for number in range(len(chains)):
            begin(number)
        while engine.has_unfinished_requests():
            for each in engine.step():
                if each.finished:
                    number = int(each.request_id.split()[0])
                    outputs[number].append(each)
                    begin(number)
        return outputs

    def _plain(self, sampled: Sampled) -> tuple[tuple[int, ...], Any]:
        return sampled.context, self._params(False, len(sampled.token_ids), ignore_eos=True)

    def _params(self, hooks: bool, max_tokens: int, **fields: Any) -> Any:
        from vllm import SamplingParams

        fields["extra_args"] = {"hooks": True} if hooks else None
        return SamplingParams(temperature=0.0, max_tokens=max_tokens, skip_special_tokens=False, **fields)


def measured(subject: Subject, drafter: str, sizes: Sequence[int]) -> list[Counts]:
    """The counts of one engine, in a process of its own."""
    bench = Bench(subject, drafter)
    return [counts for size in sizes for counts in bench.measure(size)]

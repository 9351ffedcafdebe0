# SPDX-License-Identifier: Apache-2.0
"""The ways to do a plan's work on an engine."""

from collections.abc import Callable, Mapping, Sequence

from benchmarks.forkjoin.engine import Observed, Run
from benchmarks.forkjoin.plans import FIRST_TEXT, VOCABULARY, Plan, Script, Tokens
from vllm import SamplingParams

LONGEST = 16000
"""Tokens; whoever is scripted ends with its EOS."""


def by_hooks(engine: Observed, plan: Plan, seed: int) -> Run:
    """Requests that fork and join."""
    tokens = _tokens(plan, seed)
    engine.start()
    for name, each in tokens.items():
        # What is merged is nothing that the parent has sampled.
        params = _scripted((*each.lead, *each.tail), each.children)
        params.extra_args = {"max_child_depth": plan.depth}
        engine.add(name, each.prompt, params)
    outputs = engine.drain()
    _check(outputs, {name: each.whole(plan.depth) for name, each in tokens.items()})
    return engine.finish()


def in_sequence(engine: Observed, plan: Plan, seed: int) -> Run:
    """Requests that sample all tokens one after the other."""
    tokens = _tokens(plan, seed)
    engine.start()
    for name, each in tokens.items():
        engine.add(name, each.prompt, _scripted(each.whole()))
    _check(engine.drain(), {name: each.whole() for name, each in tokens.items()})
    return engine.finish()


def by_client(engine: Observed, plan: Plan, seed: int) -> Run:
    """A request up to the fork, then one for each child, all at once, then one with their results."""
    tokens = _tokens(plan, seed)
    engine.start()
    for name, each in tokens.items():
        engine.add(name, each.prompt, _scripted(each.lead, max_tokens=plan.lead))
    leads = engine.drain()
    for name, each in tokens.items():
        for index, (mark, child) in enumerate(zip(each.marks, each.children, strict=True)):
            engine.add(f"{name}-{index}", (*each.prompt, *leads[name], mark), _scripted(child))
    results = engine.drain()
    for name, each in tokens.items():
        merged = [token for index in range(len(each.children)) for token in results[f"{name}-{index}"][:-1]]
        engine.add(name, (*each.prompt, *leads[name], *merged), _scripted(each.tail))
    tails = engine.drain()
    _check(leads | results | tails, _rounds_of(tokens))
    return engine.finish()


def batch(engine: Observed, plan: Plan, seed: int) -> Run:
    """As many plain requests as ``plan`` has children, greedy, all at once."""
    prompt = Tokens.of(plan, seed).prompt
    engine.start()
    for index, length in enumerate(plan.lengths):
        own = [*prompt[:-1], FIRST_TEXT + index % (VOCABULARY - FIRST_TEXT)]
        engine.add(f"request-{index}", own, SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True))
    engine.drain()
    return engine.finish()


WAYS: dict[str, Callable[[Observed, Plan, int], Run]] = {
    way.__name__: way for way in (by_hooks, in_sequence, by_client, batch)
}


def _scripted(
    output: Sequence[int], children: Sequence[Sequence[int]] = (), max_tokens: int = LONGEST
) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, logits_processors=[Script(output, children)])


def _tokens(plan: Plan, seed: int) -> dict[str, Tokens]:
    """By request; the hook reads the number of children from its name."""
    names = [f"request-{index}-{len(plan.lengths)}" for index in range(plan.num_requests)]
    return {name: Tokens.of(plan, seed * plan.num_requests + index) for index, name in enumerate(names)}


def _rounds_of(tokens: Mapping[str, Tokens]) -> dict[str, tuple[int, ...]]:
    children = {f"{name}-{i}": child for name, each in tokens.items() for i, child in enumerate(each.children)}
    return children | {name: each.tail for name, each in tokens.items()}


def _check(found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]) -> None:
    if found != expected:
        wrong = [name for name in expected if found.get(name) != expected[name]]
        raise RuntimeError(f"{len(wrong)} of {len(expected)} outputs are not those of the script, {wrong[0]} for one")

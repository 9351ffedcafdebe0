# SPDX-License-Identifier: Apache-2.0
"""The ways to do a plan's work on an engine."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from benchmarks.forkjoin.client import ClientTree
from benchmarks.forkjoin.engine import Observed, Run
from benchmarks.forkjoin.plans import FIRST_TEXT, VOCABULARY, Plan, Script, Tokens

MAX_CLIENT_TREES = 64
"""Twice the number of trees that together have 256 children, since some are in their first or last request."""


def by_hooks(engine: Observed, plan: Plan, seed: int) -> Run:
    """Requests that fork and join."""
    tokens = tokens_of(plan, seed)
    engine.start()
    for name, each in tokens.items():
        # The script lacks merged tokens, as the parent does not sample them.
        script = Script((*each.lead, *each.tail), each.children, len(each.prompt), len(each.lead))
        engine.add(name, each.prompt, script, max_child_depth=plan.depth)
    outputs = engine.drain()
    _check(outputs, {name: each.whole(plan.depth) for name, each in tokens.items()})
    return engine.finish()


def in_sequence(engine: Observed, plan: Plan, seed: int) -> Run:
    """Requests that sample all tokens one after the other."""
    tokens = tokens_of(plan, seed)
    engine.start()
    for name, each in tokens.items():
        engine.add(name, each.prompt, Script(each.whole()))
    _check(engine.drain(), {name: each.whole() for name, each in tokens.items()})
    return engine.finish()


def by_client(engine: Observed, plan: Plan, seed: int) -> Run:
    """For each tree a request up to the fork, then one for each child, all at once, then one with their results.

    No more trees run at once than keep the engine full: others' contexts would be evicted from its prefix cache.
    """
    tokens = tokens_of(plan, seed)
    trees = {name: ClientTree(engine, name, each) for name, each in tokens.items()}
    following = iter(trees.values())
    engine.start()
    for tree in islice(following, MAX_CLIENT_TREES):
        tree.begin()

    def then(request_id: str, output: tuple[int, ...]) -> None:
        has_ended = trees[request_id.partition("/")[0]].take(request_id, output)
        if has_ended and (tree := next(following, None)) is not None:
            tree.begin()

    _check(engine.drain(then), _rounds_of(tokens))
    return engine.finish()


def batch(engine: Observed, plan: Plan, seed: int) -> Run:
    """As many plain requests as ``plan`` has children, greedy, all at once."""
    prompt = Tokens.of(plan, seed).prompt
    engine.start()
    for index, length in enumerate(plan.lengths):
        own = [*prompt[:-1], FIRST_TEXT + index % (VOCABULARY - FIRST_TEXT)]
        engine.add_greedy(f"request-{index}", own, length)
    engine.drain()
    return engine.finish()


WAYS: dict[str, Callable[[Observed, Plan, int], Run]] = {
    way.__name__: way for way in (by_hooks, in_sequence, by_client, batch)
}


def tokens_of(plan: Plan, seed: int) -> dict[str, Tokens]:
    """The tokens of each request, by its name, from which the hook reads the number of children."""
    names = [f"request-{index}-{len(plan.lengths)}" for index in range(plan.num_requests)]
    return {name: Tokens.of(plan, seed * plan.num_requests + index) for index, name in enumerate(names)}


def _rounds_of(tokens: Mapping[str, Tokens]) -> dict[str, tuple[int, ...]]:
    rounds: dict[str, tuple[int, ...]] = {}
    for name, each in tokens.items():
        rounds |= {f"{name}/lead": each.lead, f"{name}/tail": each.tail}
        rounds |= {f"{name}/{index}": child for index, child in enumerate(each.children)}
    return rounds


def _check(found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]) -> None:
    if found != expected:
        wrong = [name for name in expected if found.get(name) != expected[name]]
        raise RuntimeError(f"{len(wrong)} of {len(expected)} outputs are not those of the script, {wrong[0]} for one")

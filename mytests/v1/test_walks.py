# SPDX-License-Identifier: Apache-2.0
"""Random trees on V1's scheduler, with the worker that checks every slot: right tokens, no hang, nothing left."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mytests.harness.surgical import CHILD, SYNC_HOOKS, Sampling, SurgicalEngine, finished, plan
from mytests.harness.tiers import modes
from mytests.harness.v1.releases import IS_REFERENCE
from sequence_hooks import SpecialKwargs

NESTED = dataclasses.replace(SYNC_HOOKS, max_child_depth=2, max_children=3)
NUM_EXAMPLES = 40 if IS_REFERENCE else 15
LETTERS = st.text("abc", max_size=2)
"""So short that no tree is cut to the model's length."""


@dataclass
class Script:
    """What one sequence samples: letters, promises with the children's scripts, and syncs."""

    text: str
    children: list["Script"] = field(default_factory=list)

    def texts(self, name: str) -> dict[str, str]:
        """The scripts of the sequence and of all below it, by request id."""
        all_texts = {name: self.text}
        for number, child in enumerate(self.children):
            all_texts |= child.texts(f"{name}_child_{number}")
        return all_texts

    @property
    def size(self) -> int:
        """No context of the tree is longer than its prompt and this."""
        return len(self.text) + sum(1 + child.size for child in self.children)

    def result(self, on: str) -> str:
        """What the sequence's text comes to.

        Args:
            on: The token at which it is joined.
        """
        text, children, unjoined = "", iter(self.children), list[str]()
        for character in self.text:
            if character == "!":
                unjoined.append(next(children).result(on))
            if character == on and unjoined:
                text += "\n".join(unjoined)
                unjoined = []
            text += character if character not in "!." else ""
        return text + "\n".join(unjoined)


def scripts(depth: int = 2) -> st.SearchStrategy[Script]:
    """Scripts with up to three children, down to ``depth``."""
    if depth == 0:
        return LETTERS.map(Script)

    @st.composite
    def draw(draw: st.DrawFn) -> Script:
        children = draw(st.lists(scripts(depth - 1), max_size=3))
        text = draw(LETTERS)
        for _ in children:
            text += "!" + draw(LETTERS) + draw(st.sampled_from(["", "."]))
        return Script(text + draw(LETTERS), children)

    return draw()


MERGES: list[dict[str, Any]] = [
    {},
    {"child_merge_strategy": "kv_inject"},
    {"child_merge_strategy": "kv_inject", "position_rule": "overlap"},
]
"""The ways to merge, as fields of the hooks."""


CONTEXTS: list[dict[str, Any]] = [
    {},
    {"child_context": "before_trigger", "child_prefix_token_ids": (CHILD,)},
    {"child_context": "none", "child_prefix_token_ids": (CHILD,)},
]
"""The contexts of children, likewise."""


def hooks(block_on: str, policy: str, *fields: dict[str, Any]) -> SpecialKwargs:
    """Nested hooks."""
    given = {name: value for each in fields for name, value in each.items()}
    return dataclasses.replace(NESTED, block_on=block_on, blocked_kv_policy=policy, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", modes())
@pytest.mark.parametrize("block_on", ["promise", "sync", "never"])
@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(
    st.lists(scripts(), min_size=1, max_size=4),
    st.sampled_from([1, 5, 9, 70, 85]),
    st.sampled_from([33, 40, 60, 200]),
    st.sampled_from([2, 3, 16]),
    st.sampled_from([16, 64]),
    st.sampled_from(["auto", "preserve", "discard"]),
    st.sampled_from(MERGES),
    st.sampled_from(CONTEXTS),
)
def test_every_tree_comes_to_what_its_scripts_say(
    mode: str,
    block_on: str,
    trees: list[Script],
    length: int,
    blocks: int,
    seqs: int,
    budget: int,
    policy: str,
    merge: dict[str, Any],
    context: dict[str, Any],
) -> None:
    """With any number of blocks that fits one context, of slots, and of tokens a step."""
    assume(all(length + number + 2 * tree.size < 128 for number, tree in enumerate(trees)))
    schedule, runner = mode.split("-")
    engine = SurgicalEngine(
        hooks(block_on, policy, {} if block_on == "never" else merge, context),
        num_blocks=blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        is_async=schedule == "asynchronous",
        runner=runner,
    )
    texts: dict[str, str] = {}
    for number, tree in enumerate(trees):
        engine.add(f"r{number}", prompt="p" * (length + number))
        texts |= tree.texts(f"r{number}")
    engine.run(plan(**texts), max_steps=4000)
    # The result of a detached child stands where a parent that waits would get it at once.
    on = "." if block_on == "sync" else "!"
    assert [finished(engine, f"r{number}").text for number in range(len(trees))] == [tree.result(on) for tree in trees]
    engine.assert_empty()


@pytest.mark.parametrize("mode", modes())
@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(
    st.lists(scripts(), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), min_size=1, max_size=4),
    st.sampled_from([33, 60]),
    st.sampled_from([("sync", merge) for merge in MERGES] + [("never", {})]),
    st.sampled_from(CONTEXTS),
)
def test_aborts_at_any_time_leave_nothing(
    mode: str,
    trees: list[Script],
    aborts: list[tuple[int, int]],
    blocks: int,
    merge: tuple[str, dict[str, Any]],
    context: dict[str, Any],
) -> None:
    """Whichever sequence is aborted, in whatever step, and whatever is in flight."""
    schedule, runner = mode.split("-")
    engine = SurgicalEngine(
        hooks(merge[0], "auto", merge[1], context),
        num_blocks=blocks,
        max_num_seqs=4,
        is_async=schedule == "asynchronous",
        runner=runner,
    )
    texts: dict[str, str] = {}
    for number, tree in enumerate(trees):
        engine.add(f"r{number}", prompt="p" * 5)
        texts |= tree.texts(f"r{number}")
    names = sorted(texts)
    script = plan(**texts)

    def choose(sampling: Sampling) -> int:
        return script(sampling)

    steps = sorted((step, names[which % len(names)]) for which, step in aborts)
    for step in range(31):
        for at, name in steps:
            if at == step:
                engine.abort(name)
        engine.step(choose)
        engine.scheduler.check_integrity()
    engine.run(choose, max_steps=4000)
    engine.assert_empty()

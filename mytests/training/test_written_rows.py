# SPDX-License-Identifier: Apache-2.0
"""Plain causal rows of trees that are written by hand, and in the fields of TRL and verl, which are not installed."""

import asyncio
import json
import sys
from dataclasses import replace
from importlib import import_module
from io import BytesIO
from itertools import accumulate, compress
from operator import attrgetter
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mytests.harness.training_trees import SYNC, characters, child, cut_tree, of_text, random_tree
from sequence_hooks.training import (
    Fork,
    ResultOf,
    SampledText,
    TextTree,
    TokenTree,
    agent_loop_outputs,
    lay_out,
    plain_rows,
    trl_rollout,
)


def contexts_by_rows(tree: TokenTree) -> dict[tuple[str, int], list[int]]:
    """What each target of plain rows sees, by its sequence and its number among what that has sampled."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in plain_rows(tree):
        for place in (place for place, is_target in enumerate(row.loss_mask) if is_target):
            number = sum(name == row.sequence for name, _ in found)
            found[row.sequence, number] = list(row.token_ids[: place + 1])
    return found


def contexts_by_layout(tree: TokenTree) -> dict[tuple[str, int], list[int]]:
    """The same of the layout, whose masks and positions engines are compared with."""
    rows = lay_out([tree], "concatenate")
    targets = sorted((each.sequence, each.position, row) for row, each in enumerate(rows.targets) if each is not None)
    found: dict[tuple[str, int], list[int]] = {}
    for name, _, row in targets:
        seen = sorted(rows.seen_by(row), key=lambda each: rows.positions[each])
        target = rows.targets[row]
        assert target is not None
        found[name, sum(of == name for of, _ in found)] = [*(rows.token_ids[each] for each in seen), target.token_id]
    return found


def test_random_trees_have_the_contexts_of_their_layouts() -> None:
    """Three levels deep, with all that can happen to one."""
    draw = Random(0)
    for _ in range(100):
        tree = random_tree(draw)
        assert contexts_by_rows(tree) == contexts_by_layout(tree)


@pytest.mark.parametrize("first_kept", [1, 3, 9])
def test_a_context_that_was_cut_has_a_row_of_its_own(first_kept: int) -> None:
    """Beside that of the context before, whose tokens are its targets alone."""
    tree = cut_tree(first_kept)
    assert [row.sequence for row in plain_rows(tree)].count(tree.name) == 2
    assert contexts_by_rows(tree) == contexts_by_layout(tree)


def test_an_engines_injection_is_refused() -> None:
    """Its join names it, or has prefilled less than was merged; and by how the engine is said to merge."""
    named = replace(SYNC, joins=(replace(SYNC.joins[0], injected=((3, 5),)),))
    for tree in (named, replace(SYNC, is_written=False)):
        with pytest.raises(ValueError, match=r"root got KV of its children at its join at 3.*; use lay_out"):
            plain_rows(tree)
    with pytest.raises(ValueError, match="merge is 'overlap', which no causal row computes"):
        plain_rows(SYNC, "overlap")


def test_who_shares_more_than_there_is_is_refused() -> None:
    """It was put together wrongly."""
    wrong = replace(SYNC, children=(replace(SYNC.children[0], num_shared=99), *SYNC.children[1:]))
    with pytest.raises(ValueError, match="a shares 99 tokens, and root never had as many"):
        plain_rows(wrong)


def test_unknown_log_probabilities_are_no_numbers() -> None:
    """Where a token is a target; what is not trained has none."""
    (row, *_) = plain_rows(replace(SYNC, logprobs=None))
    assert [each != each for each in row.logprobs] == list(row.loss_mask)
    assert not any(plain_rows(replace(SYNC, is_trained=False))[0].loss_mask)


FORKS = (SampledText("P"), Fork(child("a", "aa")), SampledText("P"), Fork(child("b", "bbb")))
ROOT = of_text(TextTree("root", "pp", (*FORKS, SampledText("S"), ResultOf("a"), SampledText("~"), ResultOf("b"))))
CHILDREN = tuple(replace(each, logprobs=(-0.25,) * len(each.output_token_ids)) for each in ROOT.children)
TREE = replace(ROOT, logprobs=tuple(-1.0 - each for each in range(len(ROOT.output_token_ids))), children=CHILDREN)
"""It ends with what was merged."""


def trained(rows: Any) -> list[Any]:
    """What a trainer sees of each target: its context, its id and its log-probability."""
    return sorted(
        ((*prompt, *answer[:place]), answer[place], logprobs[place])
        for prompt, answer, mask, logprobs in rows
        for place in compress(range(len(answer)), mask)
    )


TARGETS = trained(((), row.token_ids, row.loss_mask, row.logprobs) for row in plain_rows(TREE))


def test_trl_trains_each_sampled_token_in_its_context() -> None:
    """A row begins and ends with a target, and each group has as many as TRL wants, with the rewards of its trees."""
    fields = trl_rollout([[(TREE, 1.0), (TREE, 0.0)], [(TREE, 0.5)]], 7, pad_token_id=0)
    rows = (fields[name] for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs"))
    assert trained(zip(*rows, strict=True)) == sorted(3 * TARGETS)
    assert fields["tree_reward"] == [1.0] * 3 + [0.0] * 3 + [None] + [0.5] * 3 + [None] * 4
    assert [mask[0] + mask[-1] for mask in fields["env_mask"]] == [2] * 6 + [0] + [2] * 3 + [0] * 4


def test_trl_gets_no_rows_that_it_would_train_wrongly() -> None:
    """Without some of them, or with log-probabilities that nobody knows."""
    with pytest.raises(ValueError, match="the 2 trees of a prompt have 6 rows, and num_generations is 5"):
        trl_rollout([[(TREE, 1.0), (TREE, 0.0)]], 5, pad_token_id=0)
    with pytest.raises(ValueError, match="root has no log-probabilities; ask for logprobs=0"):
        trl_rollout([[(replace(TREE, logprobs=None), 1.0)]], 9, pad_token_id=0)


class Loop:
    """What a loop uses of verl's ``AgentLoopBase``."""

    rollout_config = SimpleNamespace(response_length=40)
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: "".join(map(chr, ids)))

    async def ct_build_initial_tokens(self, messages: list[str]) -> list[int]:
        return characters(messages[0])


def test_verls_loop_returns_rows_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's own last, which verl compares with others; of a server that is told who reads log-probabilities."""
    interface = {"AgentLoopBase": Loop, "AgentLoopOutput": SimpleNamespace, "register": lambda name: lambda loop: loop}
    for name in accumulate(("verl", ".experimental", ".agent_loop", ".agent_loop")):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(interface)
    example, asked = import_module("verl_on_trees"), dict[str, Any]()
    choice = {"index": 0, "finish_reason": "stop", "token_ids": [ord("a")], "logprobs": [-0.5]}
    response = BytesIO(json.dumps({"request_id": "r", "choices": [choice]}).encode())
    monkeypatch.setenv("TREE_SERVER", "http://there")
    monkeypatch.setattr(example, "urlopen", lambda request: asked.setdefault("request", request) and response)
    row = {"raw_prompt": ["p"], "reward_model": {"ground_truth": "a"}, "global_steps": 3}
    (output,) = asyncio.run(example.TreeAgentLoop().run({"temperature": 1.0, "logprobs": True}, **row))
    assert (output.response_ids, output.reward_score, output.extra_fields["max_global_steps"]) == ([ord("a")], 1.0, 3)
    assert json.loads(asked["request"].data)["sampling_params"]["extra_args"] == {"reads_trees": 1}
    outputs = agent_loop_outputs(TREE, 0.75)
    rows = map(attrgetter("prompt_ids", "response_ids", "response_mask", "response_logprobs"), outputs)
    assert trained(rows) == TARGETS and outputs[-1].prompt_ids == characters("pp")

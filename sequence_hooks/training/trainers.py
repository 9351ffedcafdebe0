# SPDX-License-Identifier: Apache-2.0
"""Trees in the fields of two trainers: what TRL's ``rollout_func`` returns, and an agent loop of verl.

Both take a row as a prompt, and tokens after it with a mask of those that are trained. Neither trainer is imported here
before it is needed. ``docs/trainers.md`` says what each of them does with the rows.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from math import isnan
from typing import Any, NamedTuple

from sequence_hooks.training.plain import PlainRow, plain_rows
from sequence_hooks.training.token_tree import TokenTree


class _Split(NamedTuple):
    """A row from its first target to its last; the lists after the prompt have an entry for each token."""

    prompt_ids: list[int]
    token_ids: list[int]
    mask: list[int]
    logprobs: list[float]


def trl_rollout(
    groups: Iterable[Sequence[tuple[TokenTree, float]]], num_generations: int, pad_token_id: int
) -> dict[str, list[Any]]:
    """What ``rollout_func`` of TRL's ``GRPOTrainer`` returns, with ``tree_reward`` for its reward functions.

    TRL takes exactly ``num_generations`` rows of a prompt, and a tree has one for each of its sequences. Rows that are
    missing are filled up with ones that have no target, and no reward: TRL leaves them out.

    Args:
        groups: The trees of each prompt, each with its reward.

    Raises:
        ValueError: the trees of a prompt have more rows than that, or the engine has returned no log-probabilities.
    """
    fields: dict[str, list[Any]] = {}
    names = ("prompt_ids", "completion_ids", "env_mask", "logprobs", "tree_reward")
    filler = ([pad_token_id], [pad_token_id], [0], [0.0], None)
    for group in groups:
        rows = [(*split, reward) for tree, reward in group for split in _splits(tree)]
        if len(rows) > num_generations:
            raise ValueError(
                f"the {len(group)} trees of a prompt have {len(rows)} rows, and num_generations is {num_generations}; "
                "set it to the number of trees times max_tree_sequences"
            )
        for row, _ in zip_longest(rows, range(num_generations), fillvalue=filler):
            for name, value in zip(names, row, strict=True):
                fields.setdefault(name, []).append(value)
    return fields


def agent_loop_outputs(tree: TokenTree, reward: float, **extra_fields: Any) -> list[Any]:
    """What an agent loop of verl returns for a tree: a list of ``AgentLoopOutput``, the root's own last.

    Args:
        reward: Of the tree. All of its rows have it, so verl computes none of its own.
        extra_fields: Such as the ``min_global_steps`` and ``max_global_steps`` that verl counts staleness by.

    Raises:
        ValueError: the engine has returned no log-probabilities.
    """
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    return [
        AgentLoopOutput(
            prompt_ids=split.prompt_ids,
            response_ids=split.token_ids,
            response_mask=split.mask,
            response_logprobs=split.logprobs,
            reward_score=reward,
            num_turns=2,
            metrics={},
            # verl copies the last one's information about its reward wherever there is a reward.
            extra_fields={"reward_extra_info": {}, **extra_fields},
        )
        # For GRPO verl compares the last rows of a prompt's answers with each other, so a tree counts once.
        for split in reversed(_splits(tree))
    ]


def _splits(tree: TokenTree) -> list[_Split]:
    return [_split(row) for row in plain_rows(tree) if any(row.loss_mask)]


def _split(row: PlainRow) -> _Split:
    # Whoever starts at the first target trains no prompt, and whoever ends at the last has a reward on a target.
    targets = [place for place, is_target in enumerate(row.loss_mask) if is_target]
    part = slice(targets[0], targets[-1] + 1)
    if any(isnan(row.logprobs[place]) for place in targets):
        raise ValueError(f"{row.sequence} has no log-probabilities; ask for logprobs=0")
    mask = [int(is_target) for is_target in row.loss_mask[part]]
    return _Split(list(row.token_ids[: part.start]), list(row.token_ids[part]), mask, list(row.logprobs[part]))

# SPDX-License-Identifier: Apache-2.0
"""An agent loop of verl whose answers are trees: a server with hooks samples them, and each sequence is a row.

It is written for verl 0.9.1, whose own engine has neither hooks nor a place for a tree in what it returns. So the loop
asks a server of yours, with ``flat_logprobs`` set to "refuse". It was run with verl's interface alone, and no trainer.

Usage: `vllm serve MODEL --enable-scale-out --special-kwargs ...`, which opens the route for tokens;
`TREE_SERVER=http://localhost:8000`, and in verl's configuration
`actor_rollout_ref.rollout.agent.default_agent_loop=trees`, with this module imported by each worker.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.request import Request, urlopen

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, register

from sequence_hooks.training import agent_loop_outputs, token_trees


def ask(prompt_ids: list[int], sampling_params: Mapping[str, Any]) -> Any:
    """The server's response, with the log-probabilities of each sequence."""
    params = {**sampling_params, "logprobs": 0, "extra_args": {"reads_trees": 1}}
    body = {"token_ids": prompt_ids, "sampling_params": params, "return_token_ids": True}
    url = f"{os.environ['TREE_SERVER']}/inference/v1/generate"
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request) as response:
        return json.load(response)


@register("trees")
class TreeAgentLoop(AgentLoopBase):  # type: ignore[misc, unused-ignore]
    """One prompt, and one tree as its answer."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[Any]:
        """The tree's rows, with the reward of its root's answer and the step that verl counts staleness by."""
        prompt_ids = await self.ct_build_initial_tokens(list(kwargs["raw_prompt"]))
        params = {"max_tokens": self.rollout_config.response_length, **sampling_params}
        response = await asyncio.to_thread(ask, prompt_ids, params)
        (tree,) = token_trees(response, prompt_ids)
        answer = self.tokenizer.decode(tree.output_token_ids, skip_special_tokens=True)
        reward = float(answer.strip() == kwargs["reward_model"]["ground_truth"])
        step = int(kwargs["global_steps"])
        return agent_loop_outputs(tree, reward, min_global_steps=step, max_global_steps=step)

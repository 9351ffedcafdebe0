# SPDX-License-Identifier: Apache-2.0
"""Training data from what each route of a server answers: its log-probabilities are those of the engine."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from forkjoin_engine import MODEL_FOLDER

from mytests.harness.installed import IS_V1
from mytests.harness.served import MESSAGES, MODEL, NUM_CHILDREN, PROMPT, Server, arguments
from mytests.harness.training_engines import plain_model
from sequence_hooks.training import plain_rows, token_trees

pytestmark = [
    pytest.mark.model,
    pytest.mark.floats,
    pytest.mark.skipif(not IS_V1, reason="the fork's server, of 0.9.2, returns no token ids"),
]

TOLERANCE = 1e-3
SAMPLED = {"temperature": 1.0, "seed": 3, "max_tokens": 40}


def completion(server: Server) -> Any:
    extra = arguments(return_token_ids=True) | SAMPLED
    return server.client.completions.create(prompt=PROMPT, logprobs=0, **extra)


def chat(server: Server) -> Any:
    extra = arguments(return_token_ids=True) | SAMPLED
    return server.client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=0, **extra)


def generated(server: Server) -> Any:
    """What a trainer's own client gets, which sends tokens."""
    prompt = server.call("POST", "/tokenize", json={"model": MODEL, "prompt": PROMPT}).json()["tokens"]
    body = {"token_ids": prompt, "sampling_params": {**SAMPLED, "logprobs": 0}, "return_token_ids": True}
    return server.call("POST", "/inference/v1/generate", json={"model": MODEL, **body}).json()


@pytest.mark.parametrize("ask", [completion, chat, generated])
def test_a_response_has_the_engines_tree(served: Server, ask: Callable[[Server], Any]) -> None:
    """Each sampled token of each sequence, by a plain model on plain rows."""
    (tree,) = token_trees(ask(served))
    assert len(tree.children) == NUM_CHILDREN
    for row in plain_rows(tree):
        with torch.inference_mode():
            logprobs = plain_model(MODEL_FOLDER)(torch.tensor([row.token_ids])).logits[0, :-1].log_softmax(-1)
        ours = logprobs.gather(-1, torch.tensor(row.token_ids)[1:, None])[:, 0]
        mask = torch.tensor(row.loss_mask[1:])
        torch.testing.assert_close(ours[mask], torch.tensor(row.logprobs[1:])[mask], rtol=0, atol=TOLERANCE)

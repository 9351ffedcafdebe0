# SPDX-License-Identifier: Apache-2.0
"""Outputs of requests that have not sampled anything yet, because their prompt is prefilled in chunks."""

import pytest

from vllm import SamplingParams
from vllm.outputs import RequestOutput, RequestOutputFactory
from vllm.sampling_params import RequestOutputKind
from vllm.sequence import Logprob, Sequence, SequenceGroup


@pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE])
def test_an_output_without_tokens_gets_no_logprobs_later(kind: RequestOutputKind) -> None:
    """With asynchronous processing it is handed out when the next token has been appended, and stays empty."""
    seq = Sequence(0, {"type": "token", "prompt_token_ids": [1, 2]}, block_size=4)
    group = SequenceGroup("r", [seq], arrival_time=0.0, sampling_params=SamplingParams(logprobs=1, output_kind=kind))
    output = RequestOutputFactory.create(group, {})
    seq.append_token_id(3, {3: Logprob(-1.0)})
    assert isinstance(output, RequestOutput)
    assert (list(output.outputs[0].token_ids), output.outputs[0].logprobs) == ([], [])

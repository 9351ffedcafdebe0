# SPDX-License-Identifier: Apache-2.0
"""What a joined sequence begins anew in upstream's model runners: the numbers of its new seed, and its state."""

from types import MethodType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from sequence_hooks.v1.worker import cpu_seeds, seeds, states
from sequence_hooks.v1.worker.cpu_seeds import RewindableGenerator
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as SecondRunner
from vllm.v1.worker.gpu.sample.states import SamplingStates
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as FirstRunner


def joined(seed: int | None) -> Any:
    """What a schedule says of a joined request."""
    params = SamplingParams(seed=seed)
    return MagicMock(req_id="r", sampling_params=params, prompt_token_ids=[1, 2, 3], prompt_embeds=None)


def generator(seed: int) -> torch.Generator:
    """A new one."""
    return torch.Generator().manual_seed(seed)


def drawn_from(given: torch.Generator) -> list[float]:
    """The next numbers that it gives."""
    return torch.rand(4, generator=given).tolist()


def first_runner(own: torch.Generator | None) -> Any:
    """Upstream's way to give a request its next prompt, extended; the request has had a generator of its ``own``."""
    state = SimpleNamespace(generator=own, output_token_ids=[5])
    runner: Any = MagicMock(requests={"r": state}, uses_mrope=False)
    runner._update_streaming_request = MethodType(FirstRunner._update_streaming_request, runner)
    seeds.attach(runner)
    return runner


class TestFirstRunner:
    @pytest.mark.parametrize("num_dropped", [0, 1])
    def test_a_join_begins_with_its_seed(self, num_dropped: int) -> None:
        """Whether a step in flight, whose token is dropped, has drawn a number or not."""
        own = generator(1)
        runner = first_runner(own)
        for _ in range(num_dropped):
            drawn_from(own)
        assert drawn_from(runner._update_streaming_request("r", joined(seed=7)).generator) == drawn_from(generator(7))

    def test_without_a_seed_there_is_none(self) -> None:
        """Its rows share the batch's random numbers."""
        assert first_runner(None)._update_streaming_request("r", joined(seed=None)).generator is None


def test_a_new_prompt_comes_with_new_blocks() -> None:
    """What was known of those before is forgotten, and nothing of other requests."""
    request = SimpleNamespace(output_token_ids=[5])
    runner: Any = MagicMock(requests={"r": request}, uses_mrope=False, mamba_state_idx={"r": 1, "s": 2})
    runner._update_streaming_request = MethodType(FirstRunner._update_streaming_request, runner)
    states.attach(runner)
    runner._update_streaming_request("r", MagicMock(prompt_token_ids=[1, 2, 3], prompt_embeds=None))
    assert runner.mamba_state_idx == {"s": 2}


def test_the_second_runner_takes_the_seed_of_whatever_gets_a_slot() -> None:
    """A joined request comes as a new one; the slot that it had is given up, with its seed."""
    runner, request = MagicMock(), joined(seed=7)
    SecondRunner.add_requests(runner, MagicMock(scheduled_new_reqs=[request]))
    runner._remove_request.assert_called_once_with("r")
    (call,) = runner.sampler.add_request.call_args_list
    # Releases give the sampler more or less besides.
    (params,) = [each for each in call.args if isinstance(each, SamplingParams)]
    sampling = MagicMock(vocab_size=8, seeds=SimpleNamespace(np=np.zeros(4, dtype=np.int64)))
    SamplingStates.add_request(sampling, 3, params)
    assert sampling.seeds.np.tolist() == [0, 0, 0, 7]


def test_a_cpus_generator_goes_back_by_one_step() -> None:
    """As upstream asks of a device's, by an offset."""
    own = RewindableGenerator.of(generator(3))
    first = drawn_from(own)
    own.remember()
    second = drawn_from(own)
    own.set_offset(own.get_offset() - 4)
    assert drawn_from(own) == second
    assert [*first, *second] == torch.rand(8, generator=generator(3)).tolist()


def test_a_seeded_requests_generator_is_replaced_where_it_arrives() -> None:
    """It goes on where upstream's was; each step takes note of where it begins. Others have none."""
    requests = {"r": SimpleNamespace(generator=generator(3)), "s": SimpleNamespace(generator=None)}
    batch = SimpleNamespace(generators={1: requests["r"].generator}, req_id_to_index={"r": 1, "s": 0})
    runner: Any = SimpleNamespace(input_batch=batch, requests=requests)
    runner._update_states = runner._sample = lambda *given: None
    cpu_seeds.attach(runner)
    runner._update_states(SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in "rs"]))
    own = requests["r"].generator
    assert isinstance(own, RewindableGenerator) and batch.generators == {1: own}
    drawn_from(own)
    runner._sample(None, None)
    assert drawn_from(own) == drawn_from(own.set_offset(0)) == torch.rand(8, generator=generator(3))[4:].tolist()

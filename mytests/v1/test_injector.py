# SPDX-License-Identifier: Apache-2.0
"""What the worker does about injected KV, beside either of upstream's model runners, and how it learns of it."""

import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from mytests.harness.injecting import INJECT, OVERLAP
from mytests.harness.surgical import SurgicalEngine, begun, finished, plan
from mytests.harness.v1.runners import FirstRunner, SecondRunner
from sequence_hooks.kv.transfer import SlotCopy
from sequence_hooks.v1.wire import INJECTED_BY, HookSchedulerOutput, InjectedStep, Shift
from sequence_hooks.v1.worker import injector
from sequence_hooks.v1.worker.extending import after
from sequence_hooks.v1.worker.injector import Injector, install, to_device
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput

CHILDREN = {"r_child_0": "ABCDE", "r_child_1": "VWXYZ"}
STARTS = {"r": 5, "s": 2}


class Copier:
    """Takes note of what it is to copy."""

    def __init__(self) -> None:
        self.copied: list[list[int]] = []

    def copy(self, slot_copies: torch.Tensor) -> None:
        self.copied += slot_copies.tolist()


def extended(runner: Any) -> Any:
    """A model runner that injects KV."""
    runner.copier = Copier()
    install(Injector(runner.copier, torch.device("cpu")), runner)
    return runner


def schedule(injected: InjectedStep | None = None, needed_by_r: int = 0) -> SchedulerOutput:
    """A step of two requests, in which "r" is new, and needs what one of the steps injects."""
    params = SamplingParams(extra_args={INJECTED_BY: needed_by_r} if needed_by_r else None)
    output = replace(
        SchedulerOutput.make_empty(),
        num_scheduled_tokens={"r": 2, "s": 1},
        total_num_scheduled_tokens=3,
        scheduled_new_reqs=[cast(Any, SimpleNamespace(req_id="r", sampling_params=params))],
    )
    return output if injected is None else HookSchedulerOutput.of(output, injected)


class TestPositions:
    @pytest.mark.parametrize("make", [FirstRunner, SecondRunner])
    @pytest.mark.parametrize(
        ("shifts", "positions"),
        [([Shift(2, -3)], [2, 3, 2]), ([Shift(1, 0), Shift(1, -4)], [5, 2, 2])],
        ids=["one", "several, as of results that overlap and are computed anew"],
    )
    def test_the_model_reads_what_is_shifted(
        self, make: Callable[..., Any], shifts: list[Shift], positions: list[int]
    ) -> None:
        """Each token of a request, and those of others not; nothing is left of it in the next step."""
        runner = extended(make())
        output = schedule(InjectedStep(1, shifts={"r": shifts}))
        runner.take_in(output)
        assert runner.prepare(output, STARTS).tolist() == positions
        runner.take_in(schedule())
        assert runner.prepare(output, STARTS).tolist() == [5, 6, 2]

    @pytest.mark.parametrize(("make", "num_dims"), [(FirstRunner, 3), (SecondRunner, 3), (SecondRunner, None)])
    def test_all_components_of_a_position_are_shifted(self, make: Callable[..., Any], num_dims: int | None) -> None:
        """Those of text are equal; what the second runner's sampler reads, for `min_tokens` and seeds, stays."""
        runner = extended(make() if num_dims is None else make(num_dims=num_dims))
        output = schedule(InjectedStep(1, shifts={"r": [Shift(2, -3)]}))
        runner.take_in(output)
        assert runner.prepare(output, STARTS).tolist() == ([2, 3, 2] if num_dims is None else [[2, 3, 2]] * 3)
        sampled = [runner.sample() for _ in range(2)]
        assert [each if each is None else each.tolist() for each in sampled] == [
            None if make is FirstRunner else [5, 6, 2]
        ] * 2


class TestSteps:
    def test_what_it_is_told_is_copied(self) -> None:
        """Before the model runs."""
        runner = extended(FirstRunner())
        runner.take_in(schedule(InjectedStep(1, [SlotCopy(1, 2, 3, 4)]), needed_by_r=1))
        assert runner.copier.copied == [[1, 2, 3, 4]]

    def test_a_step_that_has_not_come_is_noticed_by_who_needs_it(self) -> None:
        """Its KV would be whatever the slots have held before."""
        runner = extended(SecondRunner())
        with pytest.raises(RuntimeError, match="request r needs what step 1 of those with injected KV copies"):
            runner.take_in(schedule(needed_by_r=1))

    def test_a_step_that_has_not_come_is_noticed_by_the_next_one(self) -> None:
        """Whoever needed it."""
        runner = extended(FirstRunner())
        runner.take_in(schedule(InjectedStep(1)))
        with pytest.raises(RuntimeError, match=r"told of 1 of them.* left out its field 'injected'"):
            runner.take_in(schedule(InjectedStep(3)))


def injecting(change: Callable[[SchedulerOutput], SchedulerOutput]) -> Any:
    """An engine whose schedules are changed on their way to its worker."""
    engine: Any = SurgicalEngine(OVERLAP)
    run = engine.worker.run
    engine.worker.run = lambda output, choose: run(change(output), choose)
    engine.add(prompt="prompt")
    return engine


@pytest.mark.usefixtures("each_mode")
class TestWay:
    def test_it_survives_what_schedules_go_through(self) -> None:
        """To be replaced, and to be pickled for another process."""
        engine = injecting(lambda output: pickle.loads(pickle.dumps(replace(output, num_spec_tokens_to_schedule=0))))
        engine.run(plan(r="!.zz", **CHILDREN))
        assert (finished(engine).text, len(engine.worker.kv.injected)) == ("ABCDE\nVWXYZzz", 9)

    def test_a_schedule_without_it_is_refused(self) -> None:
        """Its sources are free already."""
        names = [each.name for each in fields(SchedulerOutput)]
        engine = injecting(lambda output: SchedulerOutput(**{name: getattr(output, name) for name in names}))
        with pytest.raises(RuntimeError, match="has replaced a schedule"):
            engine.run(plan(r="!.zz", **CHILDREN))

    def test_what_is_given_up_before_its_step_is_not_missed(self) -> None:
        """Its request computes it, and the next join copies again."""
        engine: Any = SurgicalEngine(INJECT)
        with begun(engine, plan(r="!y!zz", **CHILDREN), lambda: bool(engine.scheduler._injection.copies)):
            engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        assert (finished(engine).text, len(engine.worker.kv.injected)) == ("ABCDEyVWXYZzz", 4)


class TestDevice:
    @pytest.mark.parametrize("is_available", [True, False])
    def test_nobody_waits_for_what_goes_to_a_device(self, is_available: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """It goes from pinned memory, where the platform has any."""
        tensor, device = MagicMock(), torch.device("cuda")
        monkeypatch.setattr(torch, "from_numpy", lambda values: tensor)
        monkeypatch.setattr(injector, "is_pin_memory_available", lambda: is_available)
        moved = to_device(np.zeros(3), device)
        source = tensor.pin_memory.return_value if is_available else tensor
        assert moved is source.to.return_value
        source.to.assert_called_once_with(device, non_blocking=True)

    def test_on_a_cpu_nothing_goes_anywhere(self) -> None:
        """Pinned memory would be one copy more."""
        values = np.zeros(3)
        assert to_device(values, torch.device("cpu")).data_ptr() == values.ctypes.data


def test_arguments_may_be_given_by_name() -> None:
    """By upstream's names, which need not be ours."""
    seen: list[Any] = []
    owner = SimpleNamespace(upstreams=lambda first, second, third=None: [first, second, third])
    after(owner, "upstreams", lambda *args: seen.append(args))
    assert owner.upstreams(1, second=2) == [1, 2, None]
    assert owner.upstreams(1, third=3, second=2) == [1, 2, 3]
    assert owner.upstreams(1, 2) == [1, 2, None]
    assert seen == [(1, 2), (1, 2, 3), (1, 2)]

# SPDX-License-Identifier: Apache-2.0
"""Logits processors that fail while a sequence runs: the sequence ends, and nothing else does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mytests.harness.handlers import FORK, own
from mytests.harness.surgical import EOS, SYNC_HOOKS, Sampling, SpecialKwargs, SurgicalEngine, finished, plan
from sequence_hooks.tree.log import OncePerRequest
from vllm.engine.guard import GuardedProcessor, guard_processors
from vllm.engine.output_processor.stop_checker import request_of
from vllm.model_executor.layers.logits_processor import _apply_logits_processors_single_seq
from vllm.sampling_params import SamplingParams


class OnceClonable:
    """Like outlines' grammar processor: it cannot be cloned once it was used."""

    is_used = False

    def __call__(self, sampled: Any, logits: torch.Tensor) -> torch.Tensor:
        self.is_used = True
        return logits

    def clone(self) -> "OnceClonable":
        if self.is_used:
            raise TypeError("cannot pickle 'module' object")
        return OnceClonable()


def fails(sampled: Any, logits: torch.Tensor) -> torch.Tensor:
    """A processor that raises."""
    raise KeyError("no such state")


def exits(sampled: Any, logits: torch.Tensor) -> torch.Tensor:
    """A processor that would end the process."""
    raise SystemExit


def allows_two(sampled: Any, logits: torch.Tensor) -> torch.Tensor:
    """A processor without a fault."""
    return logits.index_fill_(0, torch.tensor([0, 1]), -torch.inf)


def guarded(processor: Any, last_token_id: int | None = 2) -> GuardedProcessor:
    """``processor`` as an engine guards it."""
    return GuardedProcessor(processor, "r", last_token_id)


def applied(*processors: Any) -> torch.Tensor:
    """Zero logits after upstream has applied ``processors`` to them."""
    return _apply_logits_processors_single_seq(torch.zeros(4), processors, (), (7, 8))


FAULTY: dict[str, tuple[Callable[..., Any], str]] = {
    "fails": (fails, "KeyError: 'no such state'"),
    "exits": (exits, "SystemExit"),
    "a dead end": (lambda sampled, logits: logits.fill_(-torch.inf), "it leaves no token that could come next"),
    "nothing": (lambda sampled, logits: None, "AttributeError: 'NoneType' object has no attribute 'shape'"),
    "too little": (
        lambda prompt, _, logits: logits[: len(prompt)],
        "it returns logits of the shape (2,), and not (4,)",
    ),
}


class TestProcessor:
    def test_without_a_fault_nothing_differs(self) -> None:
        """The logits are those of the processor."""
        processor = guarded(allows_two)
        assert applied(processor).tolist() == [-torch.inf, -torch.inf, 0, 0]
        assert processor.fault is None

    @pytest.mark.parametrize(("faulty", "fault"), FAULTY.values(), ids=FAULTY)
    def test_a_fault_leaves_the_last_token(self, faulty: Callable[..., Any], fault: str) -> None:
        """The sampler gets finite logits, of which the EOS token's is the largest; without one any token may follow."""
        processor = guarded(faulty)
        assert applied(processor).argmax() == 2
        assert applied(processor).half().isfinite().all()
        assert processor.fault == fault
        assert applied(guarded(faulty, last_token_id=None)).tolist() == [0] * 4

    @pytest.mark.rule(9)
    def test_a_child_has_a_state_of_its_own(self) -> None:
        """This includes a processor that cannot be cloned once it was used, and one that failed in the parent."""
        processor, failed = guarded(OnceClonable()), guarded(fails)
        applied(processor, failed)
        clone = processor.clone()
        assert vars(clone._processor) == {}
        assert applied(clone.clone()).tolist() == [0] * 4
        assert failed.clone().fault is None

    def test_what_is_guarded_is_not_guarded_again(self) -> None:
        """The processors that a child inherits are; one that cannot be called is refused before it is queued."""
        params = SamplingParams(logits_processors=[guarded(fails), allows_two])
        guard_processors(params, "r", EOS)
        assert [each._processor for each in params.logits_processors] == [fails, allows_two]
        with pytest.raises(ValueError, match=r"logits_processors is \[5\], and one cannot be called or cloned"):
            guard_processors(SamplingParams(logits_processors=[5]), "r", EOS)


@pytest.mark.rule(8)
@pytest.mark.parametrize(
    ("texts", "text", "reason", "failed"),
    [
        pytest.param(["abfx"], "ab", "abort", [], id="it ends as if it was aborted, with what it sampled before"),
        pytest.param(["!!!.z", "af", "B", "f"], "\nB\nz", "stop", [True, False, True], id="a child merges as nothing"),
        pytest.param(["!f", "ab"], "ab", "stop", [False], id="a parent joins its children before it ends"),
    ],
)
def test_a_fault_ends_its_sequence_alone(
    texts: list[str], text: str, reason: str, failed: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    """Who samples "f" has it; another request goes on, and the log has one line, however many children fail."""
    engine = SurgicalEngine(SYNC_HOOKS)
    engine.add(logits_processors=[guarded(fails)])
    engine.add("s")
    names = "r", "r_child_0", "r_child_1", "r_child_2"
    choose = plan(**dict(zip(names, texts, strict=False)), s="xyz")

    def sample(sampling: Sampling) -> int:
        token_id = choose(sampling)
        if token_id == ord("f"):
            applied(*engine.request_of(sampling.request_id).sampling_params.logits_processors)
        return token_id

    engine.run(sample)
    output = finished(engine)
    assert (output.text, output.finish_reason, finished(engine, "s").text) == (text, reason, "xyz")
    assert [child.failed for child in output.children] == failed
    engine.assert_empty()
    (line,) = [record.getMessage() for record in caplog.records if "stop_checker" in record.name]
    assert line.endswith(": a logits processor failed, and its sequence ends: KeyError: 'no such state'")


class TestOncePerRequest:
    def test_a_request_with_its_samples_and_children_is_one(self) -> None:
        """All their ids belong to one request; the id of a child ends in a number."""
        told = OncePerRequest(request_of)
        assert told.is_first("r_parallel_sample_3_child_0_child_12")
        assert not told.is_first("r_child_1")
        assert told.is_first("r_child_x")

    def test_only_the_latest_are_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A server runs indefinitely, so that not all can be remembered."""
        monkeypatch.setattr("sequence_hooks.tree.log._MAX_REQUESTS", 2)
        told = OncePerRequest(request_of)
        assert all(told.is_first(name) for name in ("a", "b", "c", "a"))
        assert not told.is_first("c")

    @pytest.mark.rule(8)
    def test_the_log_grows_by_a_line_a_request(self, caplog: pytest.LogCaptureFixture) -> None:
        """However many of its samples have the fault; `mytests/rules/test_logs.py` has what the line says."""
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: own("Failing")}))
        for name in ("r_parallel_sample_0", "r_parallel_sample_1"):
            engine.add(name)
        engine.run(plan(r_parallel_sample_0="***z", r_parallel_sample_1="*z"))
        assert len([record for record in caplog.records if "output_processor" in record.name]) == 1
        engine.assert_empty()

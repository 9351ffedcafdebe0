# SPDX-License-Identifier: Apache-2.0
"""How the engines' own classes hand over to the hooks, without a model behind them."""

import enum
from types import SimpleNamespace
from typing import Any

import pytest
from forkjoin_engine import MODEL_FOLDER
from torch._dynamo.symbolic_convert import InliningInstructionTranslator

from mytests.harness.surgical import HOOKS, SurgicalEngine, plan
from mytests.harness.v0.configuration import MANUAL, upstream_does
from sequence_hooks.tree.resume import ResumeRoom
from vllm.compilation.wrapper import TorchCompileWrapperWithCustomDispatcher
from vllm.config import SpecialKwargs
from vllm.engine.arg_utils import EngineArgs
from vllm.engine.guard import GuardedProcessor
from vllm.engine.llm_engine import LLMEngine
from vllm.inputs import token_inputs
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence, _check_members


def unchanged(sampled: Any, logits: Any) -> Any:
    """A logits processor."""
    return logits


def bare_engine(monkeypatch: pytest.MonkeyPatch, special_kwargs: SpecialKwargs | None, stat_loggers: Any = None) -> Any:
    """An `LLMEngine` over a surgical engine's scheduler, as upstream's constructor would leave it."""
    surgical = SurgicalEngine(special_kwargs or HOOKS)

    def construct(self: Any, vllm_config: Any, **kwargs: Any) -> None:
        self.vllm_config = vllm_config
        self.output_processor = SimpleNamespace(stop_checker=surgical.processor.stop_checker)
        self.scheduler_config, self.detokenizer = surgical.scheduler.scheduler_config, surgical.detokenizer
        self.scheduler, self.seq_counter = [surgical.scheduler], surgical.seq_counter
        self.tokenizer = SimpleNamespace(get_lora_tokenizer=lambda request: surgical.tokenizer)
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 128, max_logprobs=20, is_multimodal_model=False)
        self.cache_config = SimpleNamespace(enable_prefix_caching=False)
        self.generation_config_fields = {"eos_token_id": [9]}
        self.seq_id_to_seq_group = {}
        self.log_stats, self.stat_loggers = stat_loggers is not None, stat_loggers

    upstream_does(monkeypatch, LLMEngine, "__init__", construct)
    config: Any = SimpleNamespace(special_kwargs=special_kwargs)
    engine = LLMEngine(config)
    engine.surgical = surgical
    return engine


def parent_sequence() -> Any:
    """A sequence that has met a hook."""
    seq: Any = Sequence(0, token_inputs([1]), 4, 1)
    seq.branch = SimpleNamespace(request_id="r")
    return seq


class TestLLMEngine:
    def test_without_hooks_nothing_is_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Upstream's processor stays, and nothing can be resumed."""
        engine = bare_engine(monkeypatch, None)
        assert type(engine.output_processor) is SimpleNamespace
        assert not engine.is_waiting_for_callers()
        for call in (engine.sequences_awaiting_resume, lambda: engine.resume_sequence("r")):
            with pytest.raises(ValueError, match=r'special_kwargs is None, .*sync_resume="manual"'):
                call()

    def test_it_resumes_what_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A sequence is resumed by its own id."""
        engine = bare_engine(monkeypatch, MANUAL)
        surgical = engine.surgical
        surgical.processor = engine.output_processor
        surgical.add()
        surgical.step(plan(r="."))
        surgical.step({})
        assert engine.sequences_awaiting_resume() == surgical.waits() and surgical.awaiting() == ["r"]
        assert engine.is_waiting_for_callers()
        assert engine.room_to_resume("r") == ResumeRoom(128 - len("prompt."), None)
        engine.resume_sequence("r", "tool")
        surgical.run(plan(r=".z"))
        surgical.assert_empty()

    def test_childrens_parameters_are_completed_and_checked_as_a_requests(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The EOS tokens of the model's config stop them, too; what a handler gives is first seen when it spawns."""
        engine = bare_engine(monkeypatch, HOOKS)
        params = engine._complete_params(SamplingParams(logits_processors=[unchanged]), parent_sequence())
        assert (params.stop_token_ids, params.all_stop_token_ids) == ([9], {1, 9})
        assert type(params.logits_processors[0]) is GuardedProcessor
        with pytest.raises(ValueError, match="logprobs is 1000; use at most 20"):
            engine._complete_params(SamplingParams(logprobs=1000), parent_sequence())

    @pytest.mark.parametrize("hooks", [None, HOOKS])
    def test_a_request_that_a_step_would_die_of_is_refused(
        self, hooks: SpecialKwargs | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This holds with and without hooks, and any error of upstream's refuses only that request."""
        engine = bare_engine(monkeypatch, hooks)
        upstream_does(monkeypatch, LLMEngine, "_add_processed_request", lambda _, *args: [][0])
        with pytest.raises(ValueError, match="stop_token_ids has 999, which is not in the model's vocabulary"):
            engine._add_processed_request("r", {}, SamplingParams(stop_token_ids=[999], min_tokens=2))
        with pytest.raises(ValueError, match="cannot be processed: IndexError"):
            engine._add_processed_request("r", {}, SamplingParams())

    def test_a_request_with_limits_or_an_id_that_cannot_be_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before anything is made of it, if there are hooks; an abort of a child's id would also end the other."""
        engine, plain = bare_engine(monkeypatch, HOOKS), bare_engine(monkeypatch, None)
        added: list[Any] = []
        upstream_does(monkeypatch, LLMEngine, "_add_processed_request", lambda _, *args: added.append(args))
        params = SamplingParams(extra_args={"max_children": 99})
        with pytest.raises(ValueError, match="max_children is 99; the engine allows at most 16"):
            engine._add_processed_request("r", {}, params)
        with pytest.raises(ValueError, match=r"request_id is 'r_child_0', .* choose another"):
            engine._add_processed_request("r_child_0", {}, SamplingParams())
        plain._add_processed_request("r", {}, params)
        assert added == [("r", {}, params)]

    def test_a_requests_logits_processors_are_guarded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What one raises in a step affects only its own sequence."""
        engine = bare_engine(monkeypatch, None)
        group = engine.surgical.add(logits_processors=[unchanged])
        upstream_does(
            monkeypatch, LLMEngine, "_create_sequence_group_with_sampling", lambda self, *args, **kwargs: group
        )
        made = engine._create_sequence_group_with_sampling("r", group.first_seq, group.sampling_params)
        assert type(made.sampling_params.logits_processors[0]) is GuardedProcessor

    def test_a_request_with_an_id_that_was_used_is_told_of_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was logged once for the earlier request is forgotten with it."""
        engine = bare_engine(monkeypatch, HOOKS)
        logged = engine.output_processor.stop_checker.logged_requests
        logged.is_first("r")
        upstream_does(monkeypatch, LLMEngine, "_add_processed_request", lambda _, *args: None)
        engine._add_processed_request("r", {}, SamplingParams())
        assert logged.is_first("r")

    @pytest.mark.parametrize("loggers", [None, {}, {"logging": None}, {"prometheus": None}])
    def test_metrics_of_hooks_stand_beside_upstreams(self, loggers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are added if upstream's go to Prometheus."""
        added: list[Any] = []
        monkeypatch.setattr(LLMEngine, "_add_hook_metrics", lambda engine: added.append(engine))
        engine = bare_engine(monkeypatch, HOOKS, loggers)
        assert added == ([engine] if loggers and "prometheus" in loggers else [])

    @pytest.mark.parametrize(("hooks", "num_running"), [(None, 7), (HOOKS, 0)])
    @pytest.mark.parametrize("outputs", [SimpleNamespace(scheduled_seq_groups=[], ignored_seq_groups=[]), None])
    def test_statistics_count_requests(
        self, hooks: SpecialKwargs | None, num_running: int, outputs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With hooks a tree counts once; without hooks upstream's figures are unchanged."""
        engine = bare_engine(monkeypatch, hooks)
        stats = SimpleNamespace(num_running_sys=7, time_to_first_tokens_iter=[], time_per_output_tokens_iter=[])
        upstream_does(monkeypatch, LLMEngine, "_get_stats", lambda _, *args: stats)
        assert engine._get_stats(outputs).num_running_sys == num_running


class TestEngineArgs:
    def test_the_config_has_the_hooks_with_their_ids(self) -> None:
        """Texts are resolved by the model's own tokenizer, and V0 is chosen; without hooks it is upstream's."""
        assert EngineArgs(str(MODEL_FOLDER)).create_engine_config().special_kwargs is None
        args = EngineArgs(str(MODEL_FOLDER), special_kwargs={"sync_token": "<sync>", "promise_token": "<promise>"})
        config = args.create_engine_config()
        assert config.special_kwargs == SpecialKwargs(sync_token_id=4, promise_token_id=3)
        assert config.scheduler_config.chunked_prefill_enabled
        assert not args._is_v1_supported_oracle(config.model_config)
        assert "special_kwargs=SpecialKwargs(" in str(config) and "sync_token_id=4" in str(config)


def test_a_changed_enum_of_upstreams_fails_at_import() -> None:
    """It does not fail only later, in a scheduler."""
    changed = enum.IntEnum("changed", {"WAITING": 0, "PAUSED": 1})
    with pytest.raises(ImportError, match=r"upstream's SequenceStatus has changed: .*PAUSED"):
        _check_members(changed)


def test_a_compiled_model_may_be_inlined_with_more_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Today's dynamo passes more keyword arguments than upstream's stand-in takes."""
    taken: list[tuple[Any, ...]] = []

    def compiled() -> Any:
        inline_call: Any = InliningInstructionTranslator.inline_call
        return inline_call("parent", "func", (), {}, more=1)

    def construct(self: Any) -> None:
        self.compiled_callable = compiled

    monkeypatch.setattr(InliningInstructionTranslator, "inline_call", lambda *args: taken.append(args))
    monkeypatch.setattr(TorchCompileWrapperWithCustomDispatcher.__bases__[0], "__init__", construct)
    wrapper = type("Wrapper", (TorchCompileWrapperWithCustomDispatcher,), {"forward": None})()
    wrapper.compiled_callable()
    assert taken == [("parent", "func", (), {})]

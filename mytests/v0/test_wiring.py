# SPDX-License-Identifier: Apache-2.0
"""How the engines' own classes hand over to the hooks, without a model behind them."""

import asyncio
import enum
import io
from types import SimpleNamespace
from typing import Any

import pytest
from forkjoin_engine import MODEL_FOLDER
from torch._dynamo.symbolic_convert import InliningInstructionTranslator

from mytests.harness.surgical import HOOKS, SYNC_HOOKS, CharTokenizer, SurgicalEngine, plan
from sequence_hooks.tree.resume import ResumeRoom
from vllm.compilation.wrapper import TorchCompileWrapperWithCustomDispatcher
from vllm.config import SpecialKwargs
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.engine.guard import GuardedProcessor
from vllm.engine.llm_engine import LLMEngine
from vllm.engine.output_processor.sequence_hook import SequenceHookOutputProcessor
from vllm.entrypoints.llm import LLM
from vllm.inputs import token_inputs
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence, _check_members

MANUAL = SpecialKwargs(sync_token_id=3, sync_resume="manual")


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

    monkeypatch.setattr(LLMEngine.__bases__[0], "__init__", construct)
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
    def test_with_hooks_it_has_their_processor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has attached a driver to the scheduler."""
        engine = bare_engine(monkeypatch, HOOKS)
        before = engine.surgical.processor
        assert type(engine.output_processor) is SequenceHookOutputProcessor is type(before)
        assert engine.output_processor is not before
        assert engine.output_processor in engine.scheduler[0].trees._observers

    def test_without_hooks_nothing_is_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Upstream's processor stays, and nothing can be resumed."""
        engine = bare_engine(monkeypatch, None)
        assert type(engine.output_processor) is SimpleNamespace
        assert not engine.is_waiting_for_callers()
        with pytest.raises(ValueError, match="special_kwargs is None"):
            engine.sequences_awaiting_resume()

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

    def test_childrens_parameters_are_completed_as_a_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The EOS tokens of the model's generation config stop children, too."""
        engine = bare_engine(monkeypatch, HOOKS)
        params = engine._complete_params(
            SamplingParams(logits_processors=[lambda sampled, logits: logits]), parent_sequence()
        )
        assert params.stop_token_ids == [9]
        assert params.all_stop_token_ids == {1, 9}
        assert type(params.logits_processors[0]) is GuardedProcessor

    def test_childrens_parameters_are_checked_as_a_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those that a handler gives are first seen when it spawns."""
        engine = bare_engine(monkeypatch, HOOKS)
        with pytest.raises(ValueError, match="logprobs is 1000; use at most 20"):
            engine._complete_params(SamplingParams(logprobs=1000), parent_sequence())

    @pytest.mark.parametrize("hooks", [None, HOOKS])
    def test_a_request_that_a_step_would_die_of_is_refused(
        self, hooks: SpecialKwargs | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This holds with and without hooks, and any error of upstream's refuses only that request."""
        engine = bare_engine(monkeypatch, hooks)
        monkeypatch.setattr(LLMEngine.__bases__[0], "_add_processed_request", lambda _, *args: [][0])
        with pytest.raises(ValueError, match="stop_token_ids has 999, which is not in the model's vocabulary"):
            engine._add_processed_request("r", {}, SamplingParams(stop_token_ids=[999], min_tokens=2))
        with pytest.raises(ValueError, match="cannot be processed: IndexError"):
            engine._add_processed_request("r", {}, SamplingParams())

    def test_a_requests_logits_processors_are_guarded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What one raises in a step affects only its own sequence."""
        engine = bare_engine(monkeypatch, None)
        group = engine.surgical.add(logits_processors=[lambda sampled, logits: logits])
        monkeypatch.setattr(
            LLMEngine.__bases__[0], "_create_sequence_group_with_sampling", lambda self, *args, **kwargs: group
        )
        made = engine._create_sequence_group_with_sampling("r", group.first_seq, group.sampling_params)
        assert type(made.sampling_params.logits_processors[0]) is GuardedProcessor

    def test_a_request_with_an_id_that_was_used_is_told_of_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was logged once for the earlier request is forgotten with it."""
        engine = bare_engine(monkeypatch, HOOKS)
        logged = engine.output_processor.stop_checker.logged_requests
        logged.is_first("r")
        monkeypatch.setattr(LLMEngine.__bases__[0], "_add_processed_request", lambda _, *args: None)
        engine._add_processed_request("r", {}, SamplingParams())
        assert logged.is_first("r")

    @pytest.mark.parametrize("hooks", [None, HOOKS])
    def test_a_request_with_limits_that_cannot_be_is_refused(
        self, hooks: SpecialKwargs | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is refused if there are hooks, and before anything is made of it."""
        engine, added = bare_engine(monkeypatch, hooks), []
        monkeypatch.setattr(LLMEngine.__bases__[0], "_add_processed_request", lambda _, *args: added.append(args))
        params = SamplingParams(extra_args={"max_children": 99})
        if hooks is None:
            engine._add_processed_request("r", {}, params)
        else:
            with pytest.raises(ValueError, match="max_children is 99; the engine allows at most 16"):
                engine._add_processed_request("r", {}, params)
            params = SamplingParams()
            engine._add_processed_request("r", {}, params)
        assert added == [("r", {}, params)]

    def test_ids_of_children_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Otherwise an abort of one would also end the other."""
        with pytest.raises(ValueError, match=r"request_id is 'r_child_0', .* choose another"):
            bare_engine(monkeypatch, HOOKS)._add_processed_request("r_child_0", {}, SamplingParams())

    @pytest.mark.parametrize("loggers", [None, {}, {"logging": None}, {"prometheus": None}])
    def test_metrics_of_hooks_stand_beside_upstreams(self, loggers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are added if upstream's go to Prometheus."""
        added: list[Any] = []
        monkeypatch.setattr(LLMEngine, "_add_hook_metrics", lambda engine: added.append(engine))
        engine = bare_engine(monkeypatch, HOOKS, loggers)
        assert added == ([engine] if loggers and "prometheus" in loggers else [])

    @pytest.mark.parametrize("hooks", [None, HOOKS])
    @pytest.mark.parametrize("has_step", [True, False])
    def test_statistics_count_requests(
        self, hooks: SpecialKwargs | None, has_step: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With hooks a tree counts once; without hooks upstream's figures are unchanged."""
        engine = bare_engine(monkeypatch, hooks)
        stats = SimpleNamespace(num_running_sys=7, time_to_first_tokens_iter=[], time_per_output_tokens_iter=[])
        monkeypatch.setattr(LLMEngine.__bases__[0], "_get_stats", lambda _, *args: stats)
        outputs = SimpleNamespace(scheduled_seq_groups=[], ignored_seq_groups=[]) if has_step else None
        assert engine._get_stats(outputs).num_running_sys == (7 if hooks is None else 0)


class TestAsyncLLMEngine:
    def test_hooks_are_an_argument_as_with_the_plug_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They take the place of those in the engine's arguments, which stay as they are."""
        made: list[AsyncEngineArgs] = []
        upstream = AsyncLLMEngine.__bases__[0]
        monkeypatch.setattr(upstream, "from_engine_args", classmethod(lambda cls, args, **kwargs: made.append(args)))
        args = AsyncEngineArgs(str(MODEL_FOLDER))
        AsyncLLMEngine.from_engine_args(args, special_kwargs={"sync_token_id": 3, "sync_resume": "manual"})
        AsyncLLMEngine.from_engine_args(args, start_engine_loop=False)
        assert [each.special_kwargs for each in made] == [MANUAL, None]

    def test_it_passes_calls_on(self) -> None:
        """It does so between two steps of the event loop."""
        engine = AsyncLLMEngine.__new__(AsyncLLMEngine)
        calls: list[Any] = []

        async def tokenizer_of(lora_request: Any) -> CharTokenizer:
            return CharTokenizer()

        engine.engine = SimpleNamespace(
            resume_sequence=lambda *args: calls.append(args),
            sequences_awaiting_resume=lambda: ["r"],
            room_to_resume=lambda request_id: ResumeRoom(2, None),
            get_tokenizer_async=tokenizer_of,
        )
        for given in ([1], "ab", None):
            asyncio.run(engine.resume_sequence("r", given))
        assert calls == [("r", (1,)), ("r", (97, 98)), ("r", ())]
        assert asyncio.run(engine.sequences_awaiting_resume()) == ["r"]

    @pytest.mark.parametrize("waiting", [True, False])
    def test_it_does_not_spin_while_a_caller_is_awaited(self, waiting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each step then sleeps a little."""
        engine = AsyncLLMEngine.__new__(AsyncLLMEngine)
        config = SimpleNamespace(special_kwargs=MANUAL)
        engine.engine = SimpleNamespace(vllm_config=config, is_waiting_for_callers=lambda virtual_engine: waiting)
        slept: list[float] = []

        async def step(self: AsyncLLMEngine, virtual_engine: int) -> bool:
            return True

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        monkeypatch.setattr(AsyncLLMEngine.__bases__[0], "engine_step", step)
        monkeypatch.setattr("vllm.engine.async_llm_engine.asyncio.sleep", sleep)
        assert asyncio.run(engine.engine_step(0)) is True
        assert bool(slept) is waiting


class TestLLM:
    @pytest.mark.parametrize("hooks", [None, SYNC_HOOKS, MANUAL])
    def test_only_what_nobody_could_resume_is_refused(
        self, hooks: SpecialKwargs | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`LLM` blocks its caller until all requests are finished."""
        llm, added = LLM.__new__(LLM), []
        llm.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(special_kwargs=hooks))
        monkeypatch.setattr(LLM.__bases__[0], "_validate_and_add_requests", lambda self, prompt: added.append(prompt))
        if hooks is MANUAL:
            with pytest.raises(ValueError, match='sync_resume is "manual"'):
                llm._validate_and_add_requests("p")
        else:
            llm._validate_and_add_requests("p")
            assert added == ["p"]

    @pytest.mark.parametrize("hooks", [None, HOOKS])
    @pytest.mark.parametrize("given", [True, False])
    def test_its_bar_shows_children(
        self, hooks: SpecialKwargs | None, given: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It does so beside upstream's figures, if there are hooks and a bar is asked for."""
        shown: list[str] = []

        def run(self: Any, use_tqdm: Any) -> list[Any]:
            if callable(use_tqdm):
                with use_tqdm(total=1, postfix="speed", file=io.StringIO()) as bar:
                    scheduler.trees.stats.num_spawned += 3
                    shown.append(bar.format_dict["postfix"])
            return []

        scheduler = SimpleNamespace(trees=SimpleNamespace(stats=SimpleNamespace(num_spawned=2)))
        monkeypatch.setattr(LLM.__bases__[0], "_run_engine", run)
        llm: Any = LLM.__new__(LLM)
        llm.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(special_kwargs=hooks), scheduler=[scheduler])
        assert llm._run_engine(use_tqdm=given) == []
        assert shown == (["speed, children: 3"] if given and hooks else [])


class TestEngineArgs:
    def test_the_config_has_the_hooks_with_their_ids(self) -> None:
        """Texts are resolved by the model's own tokenizer, and V0 is chosen."""
        args = EngineArgs(str(MODEL_FOLDER), special_kwargs={"sync_token": "<sync>", "promise_token": "<promise>"})
        config = args.create_engine_config()
        assert config.special_kwargs == SpecialKwargs(sync_token_id=4, promise_token_id=3)
        assert config.scheduler_config.chunked_prefill_enabled
        assert not args._is_v1_supported_oracle(config.model_config)
        assert "special_kwargs=SpecialKwargs(" in str(config) and "sync_token_id=4" in str(config)

    def test_without_hooks_the_config_is_upstreams(self) -> None:
        """This holds whichever engine it chooses."""
        assert EngineArgs(str(MODEL_FOLDER)).create_engine_config().special_kwargs is None


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

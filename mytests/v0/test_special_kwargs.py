# SPDX-License-Identifier: Apache-2.0
"""`SpecialKwargs` of V0: its command line, and which scheduler, worker and processor a configuration gets."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forkjoin_engine import MODEL_FOLDER

from mytests.harness.surgical import HOOKS, CharTokenizer, SurgicalEngine
from mytests.harness.v0.characters import CharDetokenizer
from mytests.harness.v0.configuration import config_of
from sequence_hooks.config.inert import idle_warning
from vllm.config import SchedulerConfig, SpecialKwargs
from vllm.core.hook_scheduler import HookScheduler
from vllm.core.scheduler import Scheduler
from vllm.engine import compatibility
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.engine.child_overrides import sampling_fields
from vllm.engine.compatibility import prepare_args, resolve
from vllm.engine.output_processor.interfaces import SequenceGroupOutputProcessor
from vllm.engine.output_processor.multi_step import MultiStepOutputProcessor
from vllm.engine.output_processor.sequence_hook import SequenceHookOutputProcessor
from vllm.engine.output_processor.single_step import SingleStepOutputProcessor
from vllm.engine.output_processor.stop_checker import StopChecker
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.utils import Counter, FlexibleArgumentParser

JOIN = "mytests.harness.joins.shout"


class TestSamplingParams:
    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ({"temprature": 1}, "child_sampling_params is .*temprature"),
            ({"temperature": -1}, "correct it: temperature must be non-negative"),
            ({"n": 2, "temperature": 1}, "leave n at 1, and use children_per_promise"),
            ({"stop_token_ids": (5,)}, "child_sampling_params is .*; correct it: its types are wrong"),
            ({"logits_processors": ["nope"]}, "correct it: special_kwargs: child_sampling_params has 'nope'; use"),
            ({"logits_processors": [{"qualname": "no.pe"}]}, "special_kwargs: child_sampling_params has 'no.pe', whic"),
            (PoolingParams(), "child_sampling_params is .*; give a SamplingParams, or a dict"),
            ({"guided_decoding": {"regex": "a", "choice": ["b"]}}, "correct it: .*guided"),
            ({"_all_stop_token_ids": [1]}, "correct it: _all_stop_token_ids is set by the engine; leave it out"),
            ({"output_text_buffer_length": 9}, "output_text_buffer_length is set by the engine"),
            ({"logits_processors": ["a.b"]}, "has 'a.b', which cannot be imported"),
            ({"logits_processors": [{"args": [1]}]}, "has None; use the qualified name"),
            ({"logits_processors": [{"qualname": JOIN, "kwargs": {"x": 1}}]}, "correct it: TypeError: .*'x'"),
            ({"logits_processors": [7]}, "correct it: logits_processors is .*; give a list of functions"),
            (SamplingParams(max_tokens=2.5), "correct it: max_tokens is 2.5"),
        ],
    )
    def test_bad_sampling_params_are_refused(self, overrides: Any, message: str) -> None:
        """They are refused at start-up, and not when the first child is spawned."""
        with pytest.raises(ValueError, match=message):
            SpecialKwargs(sync_token_id=5, child_sampling_params=overrides)

    def test_logits_processors_by_name(self) -> None:
        """As in the server, a name is that of a function, or of what makes one, with its arguments."""
        given = [JOIN, {"qualname": "functools.partial", "args": [max, 1]}, min]
        made = sampling_fields({"logits_processors": given})["logits_processors"]
        assert (made[0].__name__, made[1].args, made[2]) == (JOIN.rpartition(".")[2], (1,), min)

    def test_a_sampling_params_object_is_hashable_too(self) -> None:
        """The sampling parameters are left out of the hash, but are compared."""
        assert SpecialKwargs(sync_token_id=5, child_sampling_params={"min_tokens": 20}).child_sampling_params
        params = (SamplingParams(temperature=temperature) for temperature in (1, 0))
        hot, cold = (SpecialKwargs(sync_token_id=5, child_sampling_params=each) for each in params)
        assert hash(hot) == hash(cold)
        assert hot != cold


def test_resolving_asks_the_models_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so only if a token is given by its text."""
    tokenizer = SimpleNamespace(get_vocab=lambda: {"<sync>": 7}, unk_token_id=0)
    group = SimpleNamespace(tokenizer=tokenizer)
    monkeypatch.setattr(compatibility, "init_tokenizer_from_configs", lambda *args: group)
    assert resolve(SpecialKwargs(sync_token="<sync>"), config_of()).sync_token_id == 7
    with pytest.raises(ValueError, match="skip_tokenizer_init=True leaves nothing to look it up in; give its id"):
        resolve(SpecialKwargs(sync_token="<sync>"), config_of(skip_tokenizer_init=True))


@pytest.mark.parametrize("args_cls", [EngineArgs, AsyncEngineArgs])
class TestCommandLine:
    @pytest.mark.parametrize("form", ["json", "file", "dotted"])
    def test_it_has_several_forms(
        self, args_cls: type[EngineArgs], form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A JSON object, a file that has one, or a field at a time; help says what each means. None has no hooks."""
        monkeypatch.setenv("COLUMNS", "100000")
        fields = {"protocol": "npr", "max_children": 8}
        path = tmp_path / "hooks.json"
        path.write_text(json.dumps(fields))
        forms = {
            "json": ["--special-kwargs", json.dumps(fields)],
            "file": ["--special-kwargs", f"@{path}"],
            "dotted": ["--special-kwargs.protocol", "npr", "--special-kwargs.max_children", "8"],
        }
        parser = args_cls.add_cli_args(FlexibleArgumentParser())
        assert args_cls.from_cli_args(parser.parse_args(forms[form])).special_kwargs == SpecialKwargs.of(fields)
        assert args_cls.from_cli_args(parser.parse_args([])).special_kwargs is None
        assert "default 'parent'): What a child's context" in parser.format_help()

    def test_a_bad_value_ends_the_command_with_the_reason(
        self, args_cls: type[EngineArgs], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Argparse prints what `SpecialKwargs` says."""
        parser = args_cls.add_cli_args(FlexibleArgumentParser())
        with pytest.raises(SystemExit):
            parser.parse_args(["--special-kwargs", '{"sync_tokenid": 3}'])
        assert "special_kwargs: no field sync_tokenid" in capsys.readouterr().err


def test_the_servers_own_options_alone_have_no_special_kwargs() -> None:
    """Upstream asks for them where the engine's stand already."""
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(), async_args_only=True)
    assert "special_kwargs" not in vars(parser.parse_args([]))


def create(
    special_kwargs: SpecialKwargs | None, num_lookahead_slots: int = 0, detokenizer: CharDetokenizer | None = None
) -> SequenceGroupOutputProcessor:
    """What the factory returns for a configuration."""
    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=64)
    config.num_lookahead_slots = num_lookahead_slots
    stop_checker = StopChecker(64, lambda seq: CharTokenizer())
    return SequenceGroupOutputProcessor.create_output_processor(
        config,
        detokenizer,
        [],
        Counter(),
        stop_checker.get_tokenizer_for_seq,
        stop_checker=stop_checker,
        special_kwargs=special_kwargs,
    )


def prepared(**fields: object) -> EngineArgs:
    """Engine arguments after hooks have prepared them."""
    args = EngineArgs(model="m", special_kwargs=HOOKS, **fields)
    prepare_args(args)
    return args


@pytest.mark.parametrize(
    ("hooks", "options", "processor"),
    [
        pytest.param(None, {}, SingleStepOutputProcessor, id="without hooks it is upstream's"),
        pytest.param(None, {"num_lookahead_slots": 2}, MultiStepOutputProcessor, id="for several steps, too"),
        pytest.param(HOOKS, {"detokenizer": CharDetokenizer()}, SequenceHookOutputProcessor, id="hooks have their own"),
        pytest.param(
            SpecialKwargs(promise_token_id=2, merge_separator=""), {}, SequenceHookOutputProcessor, id="no tokenizer"
        ),
    ],
)
def test_the_output_processor(hooks: SpecialKwargs | None, options: dict[str, Any], processor: type) -> None:
    """Exactly one of these classes; without a separator it needs no tokenizer."""
    assert type(create(hooks, **options)) is processor
    assert type(SurgicalEngine().processor) is SequenceHookOutputProcessor


class Mine(HookScheduler):
    """A user-defined scheduler, which may extend ours: scheduler_cls is upstream's extension point."""


OURS = "vllm.core.hook_scheduler.HookScheduler"


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, {"scheduler_cls": OURS, "enable_chunked_prefill": True}),
        ({"enable_chunked_prefill": True, "disable_async_output_proc": True}, {"disable_async_output_proc": True}),
        ({"scheduler_cls": Mine}, {"scheduler_cls": Mine}),
    ],
)
def test_hooks_choose_their_scheduler_and_chunked_prefill(given: dict[str, Any], chosen: dict[str, Any]) -> None:
    """What is set already stays; without hooks nothing is chosen."""
    args = prepared(**given)
    assert {name: getattr(args, name) for name in given | chosen} == given | chosen
    plain = EngineArgs(model="m")
    assert (plain.scheduler_cls, plain.enable_chunked_prefill) == ("vllm.core.scheduler.Scheduler", None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"enable_chunked_prefill": False}, "enable_chunked_prefill=False.*leave it unset"),
        ({"speculative_config": {"model": "d"}}, "speculative_config; leave it unset"),
        ({"num_scheduler_steps": 4}, "num_scheduler_steps=4; leave it at 1"),
        ({"scheduler_cls": Scheduler}, "scheduler_cls=.*derive it from vllm.core.hook_scheduler"),
    ],
)
def test_what_cannot_work_is_refused_at_start_up(fields: dict[str, object], message: str) -> None:
    """The error names the field, its value and the way out."""
    with pytest.raises(ValueError, match=message):
        prepared(**fields)


def test_v1_asked_for_by_hand_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """V1 has no hooks; without the variable V0 is chosen."""
    monkeypatch.setenv("VLLM_USE_V1", "1")
    with pytest.raises(ValueError, match=r"VLLM_USE_V1=1.*set VLLM_USE_V1=0"):
        prepared()


PREFIX_CACHING = {"enable_prefix_caching": True}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"runner_type": "pooling"}, "runs as 'pooling'; use a model that generates"),
        ({"is_encoder_decoder": True}, "an encoder-decoder model; use a model without an encoder"),
        ({"has_inner_state": True}, "a model with recurrent state; use a model whose state is its KV cache"),
        ({"sliding_window": 64}, "a sliding window.*set disable_sliding_window=True"),
        ({"enable_prompt_embeds": True}, "enable_prompt_embeds=True.*leave it unset"),
        (PREFIX_CACHING | {"preemption_mode": "swap"}, "preemption_mode='swap' and prefix caching.*leave one"),
        (PREFIX_CACHING | {"max_num_batched_tokens": 15}, "max_num_batched_tokens=15 .*to a block's 16 tokens"),
        ({"send_delta_data": True}, "Ray's SPMD workers.*unset VLLM_USE_RAY_SPMD_WORKER"),
        ({"chunked_prefill_enabled": False}, "without chunked prefill; use another model"),
        ({"get_vocab_size": lambda: 3}, "sync_token_id has 3, .*from 0 to 2"),
    ],
)
def test_a_model_that_cannot_carry_hooks_is_refused(fields: dict[str, object], message: str) -> None:
    """It is refused at start-up, and the error names the way out."""
    assert resolve(HOOKS, config_of()) == resolve(HOOKS, config_of(**PREFIX_CACHING)) == HOOKS
    with pytest.raises(ValueError, match=message):
        resolve(HOOKS, config_of(**fields))


def test_only_injection_has_a_worker_of_its_own() -> None:
    """It is set by worker_cls, upstream's extension point; a worker that cannot inject is refused."""
    config, injecting = config_of(), dataclasses.replace(HOOKS, child_merge_strategy="kv_inject")
    ours = "vllm.worker.hook_cpu_worker.HookCPUWorker"
    for hooks, is_ours in ((HOOKS, False), (injecting, True)):
        resolve(hooks, config)
        assert (config.parallel_config.worker_cls == ours) is is_ours
    with pytest.raises(ValueError, match=r"kv_inject.*TPUWorker.*concatenate"):
        resolve(injecting, config_of(worker_cls="vllm.worker.tpu_worker.TPUWorker"))


@pytest.mark.parametrize(("fields", "count"), [({}, 1), ({"promise_token_id": 6}, 0)])
def test_an_engine_warns_of_hooks_that_do_nothing(
    fields: dict[str, Any], count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, in its log."""
    hooks = SpecialKwargs(sync_token_id=5, **fields)
    EngineArgs(model=str(MODEL_FOLDER), special_kwargs=hooks).create_engine_config()
    told = [message for message in caplog.messages if message == idle_warning(hooks)]
    assert len(told) == count

# SPDX-License-Identifier: Apache-2.0
"""What an engine cannot have together with hooks is refused when it starts, by name."""

import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mytests.harness.characters import PROMISE, SYNC
from mytests.harness.v1.configuration import config_with
from mytests.harness.v1.releases import since
from sequence_hooks.v1.core.kv_groups import check_kv_groups
from sequence_hooks.v1.settings import has_flat_front_end
from sequence_hooks.v1.startup import prepare
from vllm.config import ModelConfig
from vllm.usage.usage_lib import UsageContext
from vllm.v1.kv_cache_interface import (
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)

HOOKS: dict[str, Any] = {"promise_token_id": PROMISE, "sync_token_id": SYNC}


def test_tokens_are_given_to_all_processes_by_id() -> None:
    """Only the front end looks them up."""
    config = config_with({"promise_token": "<promise>", "sync_token": "<sync>"})
    prepare(config)
    assert config.additional_config == {"special_kwargs": {"promise_token_id": 3, "sync_token_id": 4}}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"promise_token": "<promise>"}, "Sequence hooks are on: {'promise_token_id': 3}"),
        ({"sync_token_id": SYNC}, "special_kwargs: sync_token is set without promise_token, so nothing is ever"),
    ],
)
def test_an_operator_is_told_what_the_hooks_are(
    fields: dict[str, Any], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line, with the tokens by id; hooks that can never do anything are warned of."""
    with caplog.at_level(logging.INFO, "vllm"):
        prepare(config_with(fields))
    assert [message.startswith(line) for message in caplog.messages].count(True) == 1


INJECT = {**HOOKS, "child_merge_strategy": "kv_inject"}
MANUAL = {**HOOKS, "sync_resume": "manual"}
RECORDED = {**HOOKS, "record_to": "run.jsonl"}
OFFLOADING = {"cache_config__kv_offloading_size": 4.0}


def connected(name: str, path: str | None = None) -> Any:
    return SimpleNamespace(kv_connector=name, kv_connector_module_path=path)


NGRAM, EAGLE = SimpleNamespace(method="ngram"), SimpleNamespace(method="eagle")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheduler_config__scheduler_cls": None}, "scheduler_cls=None; set it to"),
        ({"cache_config__enable_prefix_caching": False}, "enable_prefix_caching=False; leave it on"),
        (
            {"kv_transfer_config": connected("NixlConnector")},
            "kv_transfer_config.kv_connector='NixlConnector'; use ExampleConnector or OffloadingConnector, or leave",
        ),
        (
            {"kv_transfer_config": connected("ExampleConnector", "my.module")},
            "kv_transfer_config.kv_connector_module_path='my.module'; leave it out, and use ExampleConnector",
        ),
        (
            {
                "kv_transfer_config": connected("LMCacheMPConnector"),
                **OFFLOADING,
                "cache_config__kv_offloading_backend": "lmcache",
            },
            "kv_offloading_backend='lmcache'; use 'native'",
        ),
        (
            {"kv_transfer_config": connected("SimpleCPUOffloadConnector"), **OFFLOADING},
            "VLLM_USE_SIMPLE_KV_OFFLOAD=1; unset it",
        ),
        (
            {"parallel_config__pipeline_parallel_size": 2, "speculative_config": NGRAM},
            "pipeline_parallel_size=2; leave it at 1, leave speculative_config out, or use async_scheduling",
        ),
        ({"model_config__runner_type": "pooling"}, "runner='pooling'; use a model that generates"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "prefill_context_parallel_size=2; leave it at 1"),
        ({"parallel_config__decode_context_parallel_size": 2}, "decode_context_parallel_size=2; leave it at 1"),
        ({"model_config__is_diffusion": True}, "model='.*'; use a model that samples one token at a time"),
        ({"model_config__return_sampling_mask": True}, "return_sampling_mask=True; leave it out"),
        pytest.param(
            {"model_config__enable_trace_replay": True},
            "enable_trace_replay=True; leave it out",
            marks=since(29, "there is no trace replay"),
        ),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    """The error names the field, its value and the way out."""
    with pytest.raises(ValueError, match=f"special_kwargs: sequence hooks do not work with {message}"):
        prepare(config_with(HOOKS, **changes))


@pytest.mark.parametrize(
    ("fields", "changes", "message"),
    [
        (INJECT, {"cache_config__cache_dtype": "fp8"}, "'kv_inject' does not work with kv_cache_dtype='fp8': keys are"),
        (
            {**INJECT, "position_rule": "overlap"},
            {"speculative_config": EAGLE},
            "position_rule='overlap' and speculative_config.method='eagle', which has KV of its own; leave position_",
        ),
        ({"sync_token": "<sync>"}, {"model_config__skip_tokenizer_init": True}, "give its id"),
        (HOOKS, {"model_config__skip_tokenizer_init": True}, r"merge_separator is '\\n'; set it to ''"),
        ({"sync_token": "two tokens"}, {}, "sync_token has 'two tokens', which is"),
        ({"sync_token_id": 1000}, {}, "sync_token_id has 1000, which is not in the model's vocabulary"),
        # A recording is one core's.
        (RECORDED, {"parallel_config__data_parallel_size": 2}, "record_to is 'run.jsonl'; leave it"),
    ],
)
def test_a_field_that_does_not_fit_the_engine_is_refused(
    fields: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    """Before any process of the engine starts."""
    with pytest.raises(ValueError, match=message):
        prepare(config_with(fields, **changes))


def test_kv_is_not_injected_by_another_scheme_of_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 0.29 there is one, beside M-RoPE."""
    monkeypatch.setattr(ModelConfig, "uses_xdrope_dim", 4, raising=False)
    with pytest.raises(ValueError, match="'kv_inject' does not work with uses_xdrope_dim=4: keys are not moved"):
        prepare(config_with(INJECT))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sync_resume": "manual"}, "sync_resume is 'manual'; leave it out, or unset VLLM_USE_RUST_FRONTEND"),
        ({"live_page": True}, "live_page is True; leave it out, .* shows trees"),
        ({"protocol": "skeleton"}, "protocol is 'skeleton'; leave it out, .* answers by outline"),
    ],
)
def test_what_a_front_end_without_trees_cannot_do_is_refused(
    fields: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server alone: no other engine has it, whatever the environment says. Else the core is told of it."""
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    config = config_with(HOOKS)
    prepare(config, UsageContext.LLM_CLASS)
    assert not has_flat_front_end(config)
    prepare(config, UsageContext.OPENAI_API_SERVER)
    assert has_flat_front_end(config)
    with pytest.raises(ValueError, match=message):
        prepare(config_with(fields if "protocol" in fields else {**HOOKS, **fields}), UsageContext.OPENAI_API_SERVER)


@pytest.mark.parametrize(("count", "rank", "begins"), [(1, 0, True), (2, -1, True), (2, 0, False), (2, 1, False)])
def test_who_starts_the_core_begins_its_recording(count: int, rank: int, begins: bool, tmp_path: Path) -> None:
    """Servers that join it later must not empty the file."""
    path = tmp_path / "run.jsonl"
    changes = {"parallel_config___api_process_count": count, "parallel_config___api_process_rank": rank}
    prepare(config_with({**HOOKS, "record_to": str(path)}, **changes))
    assert path.exists() is begins


@pytest.mark.parametrize(
    "overrides",
    [
        {"temperature": float("nan")},
        {"temperature": -1},
        {"max_tokens": 2.5},
        {"seed": "abc"},
        {"temprature": 1.0},
        {"n": 2},
        {"logprobs": 1000},
        pytest.param(
            {"stop_token_ids": [99999], "min_tokens": 2}, marks=since(29, "upstream takes them from requests")
        ),
        {"allowed_token_ids": [99999]},
        {"logit_bias": {99999: 1.0}},
        {"structured_outputs": {"regex": "((("}},
    ],
    ids=str,
)
def test_parameters_that_no_child_could_have_are_refused(overrides: dict[str, Any]) -> None:
    """At start-up: the first fork would end the engine with them, or none would ever happen."""
    with pytest.raises(ValueError, match=r"special_kwargs: child_sampling_params is .*; correct it: "):
        prepare(config_with({**HOOKS, "child_sampling_params": overrides}))


@pytest.mark.parametrize("overrides", [{"min_tokens": 50}, {"temperature": 0.5, "stop": ["a"]}, {"max_tokens": None}])
def test_parameters_that_a_child_could_have_are_taken(overrides: dict[str, Any]) -> None:
    """With those of some request."""
    prepare(config_with({**HOOKS, "child_sampling_params": overrides}))


WITH_A_WINDOW: Any = {"block_size": 4, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32, "sliding_window": 8}
WINDOW: Any = SlidingWindowSpec(**WITH_A_WINDOW)
ENCODER: Any = CrossAttentionSpec(block_size=4, num_kv_heads=1, head_size=1, dtype=torch.float32)
FULL: Any = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=1, dtype=torch.float32)
BOTH_WAYS: Any = dataclasses.replace(FULL, non_causal=True)
STATE: Any = MambaSpec(block_size=4, shapes=((2,),), dtypes=(torch.float32,), mamba_cache_mode="align")


@pytest.mark.parametrize(
    ("specs", "injects_kv", "message"),
    [
        ([ENCODER], False, "kind CrossAttentionSpec, as layer 0"),
        ([WINDOW], True, "'kv_inject' does not work with layers of the kind SlidingWindowSpec"),
        ([FULL, STATE], True, "'kv_inject' does not work with layers of the kind MambaSpec, as layer 1 is"),
        ([FULL, FULL], True, "'kv_inject' does not work .* 2 block tables; use 'concatenate'"),
        ([BOTH_WAYS], False, "in both directions, as layer 0 does, and after a join"),
    ],
    ids=["encoder", "window alone", "state", "several tables", "both directions"],
)
def test_layers_that_cannot_be_shared_or_injected_are_refused(specs: Any, injects_kv: bool, message: str) -> None:
    """By the name of their kind and of the first of them."""
    with pytest.raises(ValueError, match=message):
        check_kv_groups(_config_of(specs), injects_kv)


@pytest.mark.parametrize("spec", [FULL, STATE, WINDOW], ids=["full", "state", "window"])
def test_layers_with_windows_or_states_are_taken(spec: Any) -> None:
    """Beside others, or alone; with injection those with a window that keep all blocks, which moves none."""
    for specs in ([spec], [spec, FULL], [STATE, spec]):
        check_kv_groups(_config_of(specs), injects_kv=False)
    check_kv_groups(_config_of([FullAttentionSpec(**WITH_A_WINDOW)]), injects_kv=True)


@pytest.mark.parametrize("strategy", ["concatenate", "kv_inject"])
def test_only_for_injection_layers_with_a_window_keep_their_blocks(strategy: str) -> None:
    """Beside layers with full attention: what upstream needs for it is set when the engine starts."""
    config = config_with({**HOOKS, "child_merge_strategy": strategy})
    assert not config.scheduler_config.disable_hybrid_kv_cache_manager
    prepare(config)
    assert config.scheduler_config.disable_hybrid_kv_cache_manager is (strategy == "kv_inject")


def test_llm_refuses_what_it_could_not_resume() -> None:
    """Its `generate` would wait forever; other engines have callers that can resume."""
    prepare(config_with(MANUAL), UsageContext.ENGINE_CONTEXT)
    with pytest.raises(ValueError, match="sync_resume is 'manual'; use 'auto'"):
        prepare(config_with(MANUAL), UsageContext.LLM_CLASS)


def test_a_scheduler_without_hooks_is_refused() -> None:
    """On a command line, the additional configuration may have replaced them."""
    config = config_with(HOOKS)
    config.additional_config = {}
    with pytest.raises(ValueError, match="give --special-kwargs after --additional-config"):
        prepare(config)


def _config_of(specs: list[Any]) -> KVCacheConfig:
    return KVCacheConfig(8, [], [KVCacheGroupSpec([f"layer {index}"], spec) for index, spec in enumerate(specs)])

# SPDX-License-Identifier: Apache-2.0
"""CPU attention for prefills with context, against a reference in float64, and in both engines."""

from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.check_upstream.workload import VOCABULARY, save_model
from mytests.harness.cpu_steps import Heads, Step
from mytests.harness.ties import NUM_LOGPROBS, is_same, logprobs_of
from vllm import LLM, CompletionOutput, SamplingParams
from vllm.attention import AttentionType
from vllm.attention.backends import torch_sdpa
from vllm.attention.backends.torch_sdpa import TorchSDPABackend, TorchSDPABackendImpl
from vllm.attention.ops import cpu_context_plan
from vllm.attention.ops.cpu_context_plan import AttentionShape

pytestmark = pytest.mark.floats

PROMPT_LENS = [5, 40, 70, 100]
CONTEXTS = [0, 1, 15, 16, 17, 100]
QUERIES = [1, 2, 15, 16, 17, 100]
KERNEL_ROWS = {"gather": 0, "kernel": 10**9}
SHAPES = product([(4, 4), (8, 2), (3, 1)], [32, 64, 128], [torch.float32, torch.bfloat16, torch.float16])
HEADS = [Heads(*heads, size, dtype) for heads, size, dtype in SHAPES]
SLOPES = [0.5, 0.25, 0.125, 0.0625]
BIASED = [Heads(dtype=dtype, alibi_slopes=SLOPES) for dtype in (torch.float32, torch.bfloat16)]
PREFILLS = [(90, 30), (0, 60), (3, 2)]
ALL_KINDS = ([(33, 5), (0, 40), (16, 1), (200, 17)], [(70, 1), (15, 1), (1, 1)])
LATER_CHUNKS: tuple[Any, ...] = ([], [(40, 1), (50, 12)])
"""V1 counts those of a preempted request as decodes."""

V0_STEPS: list[tuple[Any, ...]] = [
    *(([(context, query)],) for context, query in product(CONTEXTS, QUERIES)),
    *(([(37, 9), (0, 20)], [], heads) for heads in HEADS),
    *((PREFILLS, [(100, 1)], heads) for heads in BIASED),
    ALL_KINDS,
]
V1_STEPS: list[tuple[Any, ...]] = [
    *((PREFILLS, [(100, 1), (7, 1)], Heads(sliding_window=window)) for window in (1, 15, 16, 40)),
    *(ALL_KINDS, LATER_CHUNKS),
]


@pytest.mark.parametrize("way", KERNEL_ROWS)
@pytest.mark.parametrize(
    ("metadata", "step"), [*product(["v0_metadata"], V0_STEPS), *product(["v1_metadata"], V1_STEPS)], ids=str
)
def test_both_ways_are_the_reference(
    metadata: str, step: tuple[Any, ...], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any context and query, also at block boundaries; with shared keys, windows and biases, in every precision."""
    monkeypatch.setattr(AttentionShape, "kernel_max_rows", property(lambda self: KERNEL_ROWS[way]))
    made = Step(*step)
    made.assert_matches(made.forward(getattr(made, metadata)()))


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("context_len", [1, 7, 8, 31, 32, 33, 100])
def test_block_sizes(block_size: int, context_len: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathering works with any block size; upstream's decode kernel is compiled only for 16."""
    monkeypatch.setattr(AttentionShape, "kernel_max_rows", property(lambda self: KERNEL_ROWS["gather"]))
    step = Step(prefills=[(context_len, 9), (0, 20)], block_size=block_size)
    step.assert_matches(step.forward(step.v0_metadata()))


@settings(max_examples=40, deadline=None)
@given(
    prefills=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 50)), min_size=1, max_size=4),
    decodes=st.lists(st.tuples(st.integers(0, 80), st.just(1)), max_size=3),
    window=st.none() | st.integers(1, 100),
    slopes=st.none() | st.just(SLOPES),
    chunk_rows=st.integers(1, 20),
)
def test_any_batch(
    prefills: list[tuple[int, int]],
    decodes: list[tuple[int, int]],
    window: int | None,
    slopes: list[float] | None,
    chunk_rows: int,
) -> None:
    """The attention is the same, however a step is divided into chunks and ways."""
    step = Step(prefills, decodes, Heads(sliding_window=window, alibi_slopes=slopes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_context_plan, "CHUNK_ROWS", chunk_rows)
        output = step.forward(step.v1_metadata())
    step.assert_matches(output)


def test_v0_decodes_stay_upstreams() -> None:
    """V0's runner trims a decode's block table to whole blocks of its window, and all of them are read."""
    step = Step(prefills=[(0, 5)], decodes=[(29, 1)], heads=Heads(sliding_window=20))
    output = step.forward(step.v0_metadata())
    step.heads.sliding_window = None
    step.assert_matches(output)


class TestWays:
    @pytest.mark.parametrize(("num_heads", "max_rows"), [(1, 9), (4, 3), (8, 2), (32, 1)])
    def test_short_queries_take_the_kernel(self, num_heads: int, max_rows: int) -> None:
        """The more query heads per key head, the lower the limit; a single token is always within it."""
        shape = AttentionShape(num_heads=num_heads, num_kv_heads=1, block_size=16)
        assert shape.kernel_max_rows == max_rows

    def test_layers_share_a_plan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A step is planned once for all layers of one shape."""
        step = Step(prefills=[(20, 5)])
        metadata = step.v0_metadata()
        first = step.forward(metadata)
        monkeypatch.setattr(cpu_context_plan, "_range", None)
        assert torch.equal(step.forward(metadata), first)


class TestUpstreamsPath:
    @pytest.mark.parametrize(
        ("step", "chunked"),
        [
            (Step(prefills=[(0, 20), (0, 3)]), False),
            (Step(prefills=[], decodes=[(20, 1), (3, 1)]), True),
        ],
        ids=["plain prefill", "decodes alone"],
    )
    def test_no_context_is_upstreams(self, step: Step, chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a prefill that may have context, upstream's forward gets the call unchanged."""
        calls = []
        (upstreams,) = TorchSDPABackendImpl.__bases__
        forward = upstreams.forward

        def spy(*args: Any) -> torch.Tensor:
            calls.append(args)
            return forward(*args)

        monkeypatch.setattr(upstreams, "forward", spy)
        metadata = step.v0_metadata(chunked_prefill=chunked)
        step.assert_matches(step.forward(metadata))
        assert len(calls) == 1 and calls[0][6] is metadata

    def test_attention_that_is_not_a_decoders_is_upstreams(self) -> None:
        """Without a causal mask and a context; in a warm-up there is no metadata, and upstream returns the query."""
        assert TorchSDPABackend.get_impl_cls() is TorchSDPABackendImpl
        impl: Any = Heads().impl()
        query = torch.zeros(2, 128)
        assert impl.forward(None, query, query, query, query, None) is query
        impl.attn_type = AttentionType.ENCODER_ONLY
        assert not impl._needs_plan(Step(prefills=[(20, 5)]).v0_metadata())

    @pytest.mark.parametrize(("window", "planned"), [(None, False), (64, False), (20, True)])
    def test_v1_decodes_past_a_window_are_ours(self, window: int | None, planned: bool) -> None:
        """V1 passes the whole block table; all other decodes stay with upstream's kernel."""
        step = Step(prefills=[], decodes=[(29, 1), (40, 1)], heads=Heads(sliding_window=window))
        impl: Any = step.heads.impl()
        assert impl._needs_plan(step.v1_metadata()) is planned
        step.assert_matches(step.forward(step.v1_metadata()))


def generate(folder: Path, **engine_args: Any) -> list[CompletionOutput]:
    """Greedy outputs of the same prompts, generated twice: the second time, prefixes may be cached."""
    sizes: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 8, **engine_args}
    llm = LLM(str(folder), dtype="float32", enforce_eager=True, skip_tokenizer_init=True, **sizes)
    params = SamplingParams(max_tokens=12, temperature=0, detokenize=False, ignore_eos=True, logprobs=NUM_LOGPROBS)
    draw = torch.Generator().manual_seed(1)
    prompts = [{"prompt_token_ids": torch.randint(3, VOCABULARY, (n,), generator=draw).tolist()} for n in PROMPT_LENS]
    return [output.outputs[0] for _ in range(2) for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.model
def test_chunks_and_cached_prefixes_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both give the plain path's greedy tokens, but for those of which a tie has decided."""
    monkeypatch.setenv("VLLM_USE_V1", "0")
    save_model(tmp_path)
    gathered = Mock(wraps=torch_sdpa.attend_range)
    monkeypatch.setattr(torch_sdpa, "attend_range", gathered)
    plain = generate(tmp_path)
    assert gathered.call_count == 0
    ours = generate(tmp_path, enable_chunked_prefill=True, enable_prefix_caching=True, max_num_batched_tokens=32)
    same = [is_same(one.token_ids, other.token_ids, logprobs_of(other)) for one, other in zip(ours, plain, strict=True)]
    assert gathered.call_count > 0 and sum(same) > len(same) / 2

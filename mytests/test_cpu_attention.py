# SPDX-License-Identifier: Apache-2.0
"""CPU attention for prefills with context, against a reference in float64, and in both engines."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mytests.cpu_steps import Heads, Step
from vllm._upstream.attention.backends import torch_sdpa as upstream
from vllm.attention.backends.torch_sdpa import TorchSDPABackend, TorchSDPABackendImpl
from vllm.attention.ops import cpu_context_plan
from vllm.attention.ops.cpu_context_plan import AttentionShape

CONTEXTS = [0, 1, 15, 16, 17, 100]
QUERIES = [1, 2, 15, 16, 17, 100]
KERNEL_ROWS = {"gather": 0, "kernel": 10**9}


@pytest.fixture(params=KERNEL_ROWS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One way for all query lengths."""
    rows = KERNEL_ROWS[request.param]
    monkeypatch.setattr(AttentionShape, "kernel_max_rows", property(lambda self: rows))
    return request.param


@pytest.mark.usefixtures("way")
class TestBothWays:
    @pytest.mark.parametrize("query_len", QUERIES)
    @pytest.mark.parametrize("context_len", CONTEXTS)
    def test_lengths(self, context_len: int, query_len: int) -> None:
        """Block borders are no borders of attention."""
        step = Step(prefills=[(context_len, query_len)])
        step.assert_matches(step.forward(step.v0_metadata()))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("head_size", [32, 64, 128])
    @pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (8, 2), (3, 1)])
    def test_heads(
        self, num_heads: int, num_kv_heads: int, head_size: int, dtype: torch.dtype
    ) -> None:
        """Grouped heads share keys, in every precision."""
        heads = Heads(num_heads, num_kv_heads, head_size, dtype)
        step = Step(prefills=[(37, 9), (0, 20)], heads=heads)
        step.assert_matches(step.forward(step.v0_metadata()))

    @pytest.mark.parametrize("engine", ["v0_metadata", "v1_metadata"])
    def test_mixed_batch(self, engine: str) -> None:
        """Prefills with and without context and decodes stand in one batch."""
        step = Step(
            prefills=[(33, 5), (0, 40), (16, 1), (200, 17)], decodes=[(70, 1), (15, 1), (1, 1)]
        )
        step.assert_matches(step.forward(getattr(step, engine)()))

    @pytest.mark.parametrize("window", [1, 15, 16, 40])
    def test_sliding_window(self, window: int) -> None:
        """A token sees itself and the window's other tokens, in V1's decodes too."""
        step = Step(
            prefills=[(90, 30), (0, 60), (3, 2)],
            decodes=[(100, 1), (7, 1)],
            heads=Heads(sliding_window=window),
        )
        step.assert_matches(step.forward(step.v1_metadata()))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_alibi(self, dtype: torch.dtype) -> None:
        """The bias grows with the distance from the query."""
        heads = Heads(dtype=dtype, alibi_slopes=[0.5, 0.25, 0.125, 0.0625])
        step = Step(prefills=[(90, 30), (0, 60)], decodes=[(100, 1)], heads=heads)
        step.assert_matches(step.forward(step.v0_metadata()))

    def test_multi_token_decode(self) -> None:
        """V1 counts the later chunks of a preempted request as decodes."""
        step = Step(prefills=[], decodes=[(40, 1), (50, 12)])
        step.assert_matches(step.forward(step.v1_metadata()))


@settings(max_examples=40, deadline=None)
@given(
    prefills=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 50)), min_size=1, max_size=4),
    decodes=st.lists(st.tuples(st.integers(0, 80), st.just(1)), max_size=3),
    window=st.none() | st.integers(1, 100),
    slopes=st.none() | st.just([0.5, 0.25, 0.125, 0.0625]),
    chunk_rows=st.integers(1, 20),
)
def test_any_batch(
    prefills: list[tuple[int, int]],
    decodes: list[tuple[int, int]],
    window: int | None,
    slopes: list[float] | None,
    chunk_rows: int,
) -> None:
    """However a step is divided into chunks and ways, it is the same attention."""
    step = Step(prefills, decodes, Heads(sliding_window=window, alibi_slopes=slopes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_context_plan, "CHUNK_ROWS", chunk_rows)
        output = step.forward(step.v1_metadata())
    step.assert_matches(output)


class TestWays:
    @pytest.mark.parametrize(
        ("num_heads", "by_kernel"), [(1, [1, 2, 12]), (4, [1, 2]), (32, [1])]
    )
    def test_short_queries_take_the_kernel(self, num_heads: int, by_kernel: list[int]) -> None:
        """The limit falls with the query heads per key head; single tokens are below it always."""
        shape = AttentionShape(num_heads=num_heads, num_kv_heads=1, block_size=16)
        assert [rows for rows in (1, 2, 12, 13) if rows <= shape.kernel_max_rows] == by_kernel

    def test_layers_share_a_plan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A step is planned once for all layers of one shape."""
        step = Step(prefills=[(20, 5)])
        metadata = step.v0_metadata()
        first = step.forward(metadata)
        monkeypatch.setattr(cpu_context_plan, "_span", None)
        assert torch.equal(step.forward(metadata), first)


class TestUpstreamsPath:
    def test_backend_names_our_implementation(self) -> None:
        """Upstream's backend would name its own."""
        assert TorchSDPABackend.get_impl_cls() is TorchSDPABackendImpl

    @pytest.mark.parametrize(
        ("step", "chunked"),
        [
            (Step(prefills=[(0, 20), (0, 3)]), False),
            (Step(prefills=[], decodes=[(20, 1), (3, 1)]), True),
        ],
        ids=["plain prefill", "decodes alone"],
    )
    def test_no_context_is_upstreams(
        self, step: Step, chunked: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a prefill that may have context, upstream's forward gets the call as it is."""
        calls = []
        forward = upstream.TorchSDPABackendImpl.forward

        def spy(*args: object) -> torch.Tensor:
            calls.append(args)
            return forward(*args)

        monkeypatch.setattr(upstream.TorchSDPABackendImpl, "forward", spy)
        metadata = step.v0_metadata(chunked_prefill=chunked)
        step.assert_matches(step.forward(metadata))
        assert len(calls) == 1 and calls[0][6] is metadata

    def test_warm_up_has_no_metadata(self) -> None:
        """Upstream answers a warm-up with the query."""
        query = torch.zeros(2, 128)
        heads = Heads()
        assert heads.impl().forward(None, query, query, query, query, None) is query

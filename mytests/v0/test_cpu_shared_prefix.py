# SPDX-License-Identifier: Apache-2.0
"""CPU decodes that attend to a common prefix together, against a reference in float64 and in an engine."""

from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from forkjoin_engine import GREEDY, answers, hooks_for, open_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from mytests.harness.cpu_steps import Heads, Step
from mytests.harness.sure import sure_prompts
from vllm.attention import AttentionType
from vllm.attention.backends import torch_sdpa
from vllm.attention.backends.torch_sdpa import TorchSDPABackend, TorchSDPABackendImpl
from vllm.attention.ops import cpu_shared_prefix, cpu_shared_prefix_plan
from vllm.attention.ops.cpu_shared_prefix_plan import Costs
from vllm.worker.cpu_model_runner import ModelInputForCPUBuilder

pytestmark = pytest.mark.floats

BLOCK = 16
FREE = Costs(prefix_key=0, prefix_head=0, tail_key=0, group=0)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharing costs nothing and may use all of the cache."""
    monkeypatch.setattr(cpu_shared_prefix_plan, "COSTS", FREE)
    monkeypatch.setattr(cpu_shared_prefix_plan, "KEPT_PART", 1)


def spied(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> Mock:
    """Records the calls of a function."""
    spy = Mock(wraps=getattr(module, name))
    monkeypatch.setattr(module, name, spy)
    return spy


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The calls that attend for a group."""
    return spied(monkeypatch, torch_sdpa, "attend_group")


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The calls that gather a prefix."""
    return spied(monkeypatch, cpu_shared_prefix, "gather_blocks")


@pytest.fixture
def upstreams(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Records the calls of upstream's forward."""
    (base,) = TorchSDPABackendImpl.__bases__
    forward, spy = base.forward, Mock()

    def spied(*args: Any) -> torch.Tensor:
        spy()
        return forward(*args)

    monkeypatch.setattr(base, "forward", spied)
    return spy


@dataclass
class Family(Step):
    """A step with shared prefixes: each pair has the indices of sequences, and how many first blocks they share."""

    shared: tuple[tuple[tuple[int, ...], int], ...] = ()

    def _shuffled_tables(self) -> list[list[int]]:
        tables = super()._shuffled_tables()
        for members, num_blocks in self.shared:
            first, *others = members
            for other in others:
                tables[other][:num_blocks] = tables[first][:num_blocks]
                for rows in (self.keys, self.values):
                    rows[other][: num_blocks * BLOCK] = rows[first][: num_blocks * BLOCK]
        return tables

    def hooked(self) -> Any:
        """The metadata of an engine with sequence hooks."""
        metadata = self.v0_metadata()
        metadata.may_share_prefixes = True
        return metadata


def siblings(*tail_lens: int, num_blocks: int = 6, heads: Heads | None = None) -> Family:
    """Decodes with a common prefix of ``num_blocks`` blocks, followed by ``tail_lens`` tokens."""
    decodes = [(num_blocks * BLOCK + tail_len - 1, 1) for tail_len in tail_lens]
    shared = ((tuple(range(len(tail_lens))), num_blocks),)
    return Family([], decodes, heads or Heads(), shared=shared)


SHAPES = product([(4, 4), (8, 2), (3, 1)], [32, 64, 128], [torch.float32, torch.bfloat16, torch.float16])
TAILS = [(1, 1), (5, 5, 5), (1, 16, 17, 40), tuple(range(1, 17))]
TWO_TREES = Family(
    [],
    [(70, 1), (200, 1), (90, 1), (130, 1), (210, 1), (15, 1), (85, 1), (220, 1)],
    shared=(((0, 2, 6), 4), ((1, 3, 4, 7), 5), ((1, 4, 7), 12)),
)
"""One of them with grandchildren, and two unrelated sequences, in no order."""

PREFILLS = [(33, 20), (0, 40), (66, 2), (68, 2)]
BESIDE_PREFILLS = Family(PREFILLS, [(70, 1), (80, 1), (15, 1)], shared=(((2, 3, 4), 4), ((0, 1), 1)))
"""Long ones are in no group; short ones are: children in their first step, beside a running sibling."""

FAMILIES: list[tuple[Family, list[list[int]]]] = [
    *((siblings(*tails), [[*range(len(tails))]]) for tails in TAILS),
    *((siblings(3, 20, 7, heads=Heads(*heads, size, dtype)), [[0, 1, 2]]) for heads, size, dtype in SHAPES),
    (TWO_TREES, [[1, 4, 7], [0, 2, 6]]),
    (BESIDE_PREFILLS, [[60, 61, 62, 63, 64]]),
    # There are no rows for the kernel.
    (Family([(33, 20)]), []),
]


@pytest.mark.usefixtures("free")
class TestAttention:
    @pytest.mark.parametrize(("step", "rows"), FAMILIES, ids=[str(each.heads) for each, _ in FAMILIES])
    def test_a_family_is_the_reference(self, step: Family, rows: list[list[int]], attended: Mock) -> None:
        """Siblings see their common prefix and their own tails; their rows attend as these groups."""
        step.assert_matches(step.forward(step.hooked()))
        assert [call.args[4].rows.tolist() for call in attended.call_args_list] == rows

    @pytest.mark.parametrize("loudness", [1e-3, 30])
    @pytest.mark.parametrize("loud", [slice(6 * BLOCK), slice(6 * BLOCK, None)], ids=["prefix", "tail"])
    def test_any_share_of_the_tail(self, loud: slice, loudness: float) -> None:
        """Prefix and tail are combined whatever their weights, even if exponentials leave float's range."""
        step = siblings(10, 20)
        for keys in step.keys:
            keys[loud] *= loudness
        step.kv_cache = step._cache_with_contexts()
        step.assert_matches(step.forward(step.hooked()))


MEMBERS = st.lists(st.integers(0, 5), min_size=2, max_size=6, unique=True).map(tuple)


@settings(max_examples=30, deadline=None)
@given(
    num_prefills=st.integers(0, 4),
    tail_lens=st.lists(st.integers(2, 60), min_size=6, max_size=6),
    shared=st.lists(st.tuples(MEMBERS, st.integers(1, 6)), max_size=5).map(tuple),
)
def test_any_family(num_prefills: int, tail_lens: list[int], shared: tuple[tuple[tuple[int, ...], int], ...]) -> None:
    """The attention is the same, however the sequences are related and whichever groups result."""
    lens = [6 * BLOCK + tail_len for tail_len in tail_lens]
    prefills, decodes = [(n - 2, 2) for n in lens[:num_prefills]], [(n - 1, 1) for n in lens[num_prefills:]]
    step = Family(prefills, decodes, shared=shared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_shared_prefix_plan, "COSTS", FREE)
        output = step.forward(step.hooked())
    step.assert_matches(output)


class TestUpstreamsPath:
    def test_without_hooks(self, free: None, upstreams: Mock, attended: Mock) -> None:
        """Upstream's forward gets the step, even if its sequences are siblings."""
        step = siblings(5, 5)
        step.assert_matches(step.forward(step.v0_metadata()))
        assert (upstreams.call_count, attended.call_count) == (1, 0)

    @pytest.mark.parametrize(
        ("has_hooks", "tables", "is_marked"),
        [
            (True, [[], [3, 4], []], False),
            (True, [[3, 4], [3, 5], [6]], True),
            (True, [[3, 4], [4, 3], [6]], False),
            (True, [], False),
            (False, [[3, 4], [3, 5], [6]], False),
        ],
    )
    def test_the_builder_marks_steps(self, has_hooks: bool, tables: list[list[int]], is_marked: bool) -> None:
        """A step is marked if there are hooks and two block tables begin alike."""
        config = SimpleNamespace(special_kwargs=hooks_for("sync") if has_hooks else None)
        data = ModelInputForCPUBuilder.ModelInputData(use_mrope=False)
        data.decode_block_tables, data.num_decode_tokens = tables, len(tables)
        runner = SimpleNamespace(vllm_config=config)
        builder_cls = TorchSDPABackend.get_builder_cls()
        builder = builder_cls(SimpleNamespace(chunked_prefill=True, input_data=data, runner=runner))
        builder.prepare()
        assert hasattr(builder.build([], [], -1, -1), "may_share_prefixes") is is_marked

    @pytest.mark.parametrize("heads", [Heads(sliding_window=1000), Heads(alibi_slopes=[0.5, 0.25, 0.125, 0.0625])])
    @pytest.mark.usefixtures("free")
    def test_windows_and_alibi(self, heads: Heads, upstreams: Mock) -> None:
        """Layers with a window or ALiBi are left to upstream's kernel, which supports them."""
        step = siblings(5, 5, heads=heads)
        step.assert_matches(step.forward(step.hooked()))
        assert upstreams.call_count == 1

    def test_what_does_not_pay(self, upstreams: Mock) -> None:
        """A short prefix costs more to treat separately than to read twice."""
        step = siblings(5, 5)
        step.assert_matches(step.forward(step.hooked()))
        assert upstreams.call_count == 1

    @pytest.mark.parametrize(
        ("name", "value"), [("attn_type", AttentionType.ENCODER_DECODER), ("kv_cache_dtype", "fp8")]
    )
    def test_other_layers(self, name: str, value: str) -> None:
        """Cross attention has other block tables; quantized caches are left to the kernel."""
        step = siblings(5, 5)
        impl: Any = step.heads.impl()
        setattr(impl, name, value)
        assert not impl._may_share(step.hooked())


@pytest.mark.usefixtures("free")
class TestKeptPrefixes:
    @pytest.fixture
    def impl(self, monkeypatch: pytest.MonkeyPatch) -> TorchSDPABackendImpl:
        """One layer for all steps of a test."""
        impl = Heads().impl()
        monkeypatch.setattr(Heads, "impl", lambda self: impl)
        return impl

    @pytest.mark.usefixtures("impl")
    def test_a_group_gathers_once(self, gathered: Mock) -> None:
        """Its prefix is gathered once while it decodes step after step."""
        step = siblings(5, 9)
        for _ in range(3):
            step.assert_matches(step.forward(step.hooked()))
        assert gathered.call_count == 1

    @pytest.mark.parametrize("between", [siblings(5, 9, num_blocks=3), Family([], [(20, 1)]), Family([(5, 20)])])
    def test_a_step_without_the_group_drops_it(self, between: Family, impl: Any, gathered: Mock) -> None:
        """Nothing that the prefix's blocks held before is ever read again."""
        step = siblings(5, 9)
        step.forward(step.hooked())
        (kept,) = impl._kept._kept
        between.forward(between.hooked())
        assert kept not in impl._kept._kept
        gathered.reset_mock()
        step.keys = [keys.flip(0) for keys in step.keys]
        step.keys[1][: 6 * BLOCK] = step.keys[0][: 6 * BLOCK]
        step.kv_cache.copy_(step._cache_with_contexts())
        step.assert_matches(step.forward(step.hooked()))
        assert gathered.call_count == 1

    def test_an_engine_without_groups_keeps_nothing(self, impl: Any) -> None:
        """The first step that is upstream's drops all that was kept."""
        step, alone = siblings(5, 9), Family([], [(20, 1)])
        step.forward(step.hooked())
        alone.forward(alone.v0_metadata())
        assert impl._kept._kept == {}

    @pytest.mark.usefixtures("impl")
    def test_another_cache_is_another_prefix(self, gathered: Mock) -> None:
        """Virtual engines use the same block numbers for different caches."""
        step, other = siblings(5, 9), siblings(5, 9)
        other.values = [-values for values in other.values]
        other.kv_cache = other._cache_with_contexts()
        for each in (step, other, step):
            each.assert_matches(each.forward(each.hooked()))
        assert gathered.call_count == 3


@pytest.mark.model
@pytest.mark.usefixtures("free")
def test_an_engines_tokens_are_the_same(attended: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharing changes no token, even if parents decode beside their children."""
    engine = open_engine(hooks_for("sync"))
    prompts = sure_prompts(6, seed=1, mode="sync")
    together = answers(engine.generate(prompts, GREEDY, use_tqdm=False))
    assert attended.call_count > 0
    monkeypatch.setattr(torch_sdpa, "begin_alike", lambda tables: False)
    attended.reset_mock()
    assert answers(engine.generate(prompts, GREEDY, use_tqdm=False)) == together
    assert attended.call_count == 0

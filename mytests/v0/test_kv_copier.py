# SPDX-License-Identifier: Apache-2.0
"""Copying KV between the slots of a whole model, and refusing models whose KV cannot be copied."""

import inspect
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from mytests.harness.kv_copies import ROTARIES, RotaryShape, TinyModel, assert_rotated
from sequence_hooks.kv.caches import Layer, TokenView, copy_slots
from vllm.attention import AttentionType
from vllm.model_executor.layers import rotary_embedding
from vllm.worker import kv_copier
from vllm.worker.hook_workers import hook_worker_for
from vllm.worker.kv_copier import _SUPPORTED, KVCopier, check_rotary

pytestmark = pytest.mark.floats

UPSTREAM_MODELS = Path(str(inspect.getfile(rotary_embedding))).parent.parent / "models"
EMBEDDINGS = [
    cls
    for cls in vars(rotary_embedding).values()
    if isinstance(cls, type) and issubclass(cls, nn.Module) and "Rotary" in cls.__name__
]


def refused(what: str) -> Any:
    """Expects the error that names ``what``, and the way out."""
    told = f"special_kwargs: child_merge_strategy='kv_inject' does not work with {what}"
    return pytest.raises(ValueError, match=re.escape(told) + ".*; use 'concatenate'$")


def open_model(model: TinyModel) -> KVCopier:
    """Makes a copier as a worker does when it has loaded a model."""
    return KVCopier(model.module, model.context)


Copies = list[tuple[int, int, int, int]]
FIELDS = {
    "backend": st.sampled_from(["TORCH_SDPA", "FLASH_ATTN"]),
    "block_size": st.sampled_from([1, 4, 16]),
    "num_blocks": st.just(6),
    "num_kv_heads": st.integers(1, 3),
}


@st.composite
def fields_and_copies(draw: st.DrawFn) -> tuple[dict[str, Any], Copies]:
    """A model and a step's copies: sources may be destinations, and destinations are unique."""
    fields: dict[str, Any] = draw(st.fixed_dictionaries(FIELDS))
    slot, position = st.integers(0, fields["block_size"] * fields["num_blocks"] - 1), st.integers(0, 500)
    copies = st.lists(st.tuples(slot, slot, position, position), min_size=1, unique_by=lambda copy: copy[1])
    return fields, draw(copies)


class TestCopies:
    @settings(max_examples=60, deadline=None, derandomize=True)
    @example(({}, [(1, 2, 9, 9), (2, 1, 9, 9)]))
    @given(fields_and_copies())
    def test_a_step_copies_as_if_all_at_once(self, drawn: tuple[dict[str, Any], Copies]) -> None:
        """In every layer values are copied bit for bit and keys are moved; every other slot stays bit for bit."""
        fields, copies = drawn
        model = TinyModel(**fields)
        sources, destinations, before, after = torch.tensor(copies).unbind(1)
        was = model.rows()
        model.copy_kv(*copies)
        others = sorted(set(range(model.num_slots)) - set(destinations.tolist()))
        for old, new in zip(was, model.rows(), strict=True):
            turned_on, expected = model.rotate(new[destinations, 0], before), model.rotate(old[sources, 0], after)
            assert torch.equal(new[others], old[others])
            assert torch.equal(new[destinations, 1], old[sources, 1])
            assert_rotated(turned_on, expected, model.shape, num_moves=3)

    def test_layers_may_differ_in_their_rotary_embeddings(self) -> None:
        """Gemma 3 has one for its local layers and another for its global ones."""
        model, other = TinyModel(), TinyModel(rotary=ROTARIES["linear"])
        model.module[1].rotary_emb = other.rotary_emb
        keys = torch.randn(1, 2, 32, generator=torch.Generator().manual_seed(0))
        model.write_keys([0], keys)
        model.copy_kv((0, 5, 0, 100))
        for injected, made_by in zip(model.keys([5]), (model, other), strict=True):
            assert_rotated(injected, made_by.rotate(keys, torch.tensor([100])), model.shape)

    def test_keys_without_positions_are_copied_as_they_are(self) -> None:
        """Some layers rotate none."""
        keys, values = (TokenView(torch.randn(1, 4, 1, 2, 8)) for _ in range(2))
        copy_slots([Layer(keys, values, rotary=None)], torch.tensor([[0, 3, 0, 100]]))
        for view in (keys, values):
            assert torch.equal(view.cache[0, 3], view.cache[0, 0])

    def test_each_virtual_engine_has_its_caches(self) -> None:
        """Under pipeline parallelism a copy touches only the caches of its own virtual engine."""
        model = TinyModel(num_layers=1)
        (attention,) = model.attentions
        first, second = attention.kv_cache[0], attention.kv_cache[0].clone()
        kept = first.clone()
        attention.kv_cache = [first, second]
        open_model(model).copy(torch.tensor([[0, 1, 2, 3]]), virtual_engine=1)
        assert torch.equal(first, kept)
        assert not torch.equal(second, kept)


UNSUITABLE: list[tuple[str, str, Any, str]] = [
    # GPT-2 and OPT add positions to the embeddings; they have no module that rotates.
    ("module.1", "rotary_emb", None, "layers without rotary embeddings, as in model.layers.1.self_attn.attn"),
    ("attentions.0.impl", "alibi_slopes", torch.ones(2), "ALiBi, as in model.layers.0.self_attn.attn"),
    # It is unknown which of them rotated the keys.
    (
        *("module.0", "other", ROTARIES["yarn"](RotaryShape())),
        "several rotary embeddings in a layer (RotaryEmbedding, YaRNScalingRotaryEmbedding), as in",
    ),
    # FlashInfer, MLA and block-sparse attention have other layouts; a third-party backend has no name.
    ("attentions.1", "backend", SimpleNamespace(name="FLASHINFER"), "the KV cache of TorchSDPABackendImpl"),
    ("attentions.1", "backend", None, "the KV cache of TorchSDPABackendImpl"),
    # Keys cannot be rotated in 8 bits.
    ("attentions.0", "kv_cache_dtype", "fp8_e5m2", "a quantized KV cache (kv_cache_dtype='fp8_e5m2')"),
    # This is how upstream wraps the models of the transformers library: attention outside of the model's modules.
    ("", "module", nn.Module(), "layers without rotary embeddings, as in model.layers.0.self_attn.attn"),
]
OTHER_KEYS = [
    ("CohereAttention", "v1", True, "commandr", "if self.v1 or self.sliding_window:\n            q, k = self.ro"),
    ("HunYuanAttention", "use_qk_norm", False, "hunyuan_v1_moe", "k = self.key_layernorm("),
    ("HunYuanCrossAttention", "use_qk_norm", False, "hunyuan_v1_moe", "k = self.key_layernorm("),
]


class TestWhatIsRefused:
    @pytest.mark.parametrize("cls", EMBEDDINGS, ids=lambda cls: cls.__name__)
    def test_rotary_embeddings_that_do_more_than_turn(self, cls: type[nn.Module]) -> None:
        """Each of upstream's classes is either known to only rotate, or refused by its name."""
        module: Any = nn.Module.__new__(cls)
        nn.Module.__init__(module)
        module.head_size = 32
        with nullcontext() if cls in _SUPPORTED else refused(cls.__name__):
            check_rotary(module, 32)

    def test_all_that_are_supported_are_tested(self) -> None:
        """`test_kv_slots` measures all of them, and the table above has all models that are known by name."""
        assert {type(make(RotaryShape())) for make in ROTARIES.values()} == set(_SUPPORTED)
        assert set(kv_copier._KEYS_OF_THEIR_OWN) == {owner for owner, *_ in OTHER_KEYS}

    def test_supported_ones_in_another_form(self) -> None:
        """What a subclass adds is unknown; with several factors each adapter has its positions; MLA rotates an end."""
        shape, linear = RotaryShape(), rotary_embedding.LinearScalingRotaryEmbedding
        mine = type("MyRotary", (rotary_embedding.RotaryEmbedding,), {})
        for rotary, head_size, told in (
            (shape.make(mine), 32, "MyRotary"),
            (shape.make(linear, [1.0, 4.0]), 32, "LinearScalingRotaryEmbedding of several scaling factors"),
            (shape.make(rotary_embedding.RotaryEmbedding), 64, "RotaryEmbedding of 32 elements in heads of 64"),
        ):
            with refused(told):
                check_rotary(rotary, head_size)

    @pytest.mark.parametrize(("part", "name", "value", "told"), UNSUITABLE)
    def test_layers_whose_kv_cannot_be_moved(self, part: str, name: str, value: Any, told: str) -> None:
        """The error names a layer, and what it has."""
        model: Any = TinyModel()
        owner = model
        for step in filter(None, part.split(".")):
            owner = owner[int(step)] if step.isdigit() else getattr(owner, step)
        setattr(owner, name, value)
        with refused(told):
            open_model(model)

    def test_the_layout_of_intels_extension(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It stores tokens in another order, under the same backend name."""
        monkeypatch.setattr("vllm.attention.ops.ipex_attn._use_ipex", True)
        with refused("the KV cache of intel_extension_for_pytorch"):
            open_model(TinyModel())

    @pytest.mark.parametrize(("owner", "attribute", "copies_keys", "file", "cause"), OTHER_KEYS)
    def test_models_that_change_keys_otherwise(
        self, owner: str, attribute: str, copies_keys: bool, file: str, cause: str
    ) -> None:
        """They are known by name, since only upstream's code shows what they do; it still does."""
        source = (UPSTREAM_MODELS / f"{file}.py").read_text()
        assert cause in source and f"class {owner}(" in source and f"self.{attribute} = " in source
        model = TinyModel()
        model.module[0].__class__ = type(owner, (type(model.module[0]),), {attribute: copies_keys})
        open_model(model)
        setattr(type(model.module[0]), attribute, not copies_keys)
        with refused(f"{owner}, whose keys are not only rotated, as in model.layers.0.self_attn.attn"):
            open_model(model)


class TestHowLayersAreFound:
    def test_the_rotary_embedding_may_stand_one_level_up(self) -> None:
        """It is then a sibling of the module that holds the attention."""
        model = TinyModel(num_layers=1)
        inner = model.module[0]
        inner.rotary_emb, outer = None, nn.Module()
        outer.self_attn, outer.rotary_emb = inner, model.rotary_emb
        copier = KVCopier(nn.ModuleList([outer]), model.context)
        assert [rotary for _, rotary in copier._layers] == [model.rotary_emb]

    def test_what_has_no_kv_cache_is_passed_over(self) -> None:
        """Experts and state-space layers are in the same context; encoder layers keep no KV."""
        model = TinyModel()
        encoders, decoders = model.attentions
        encoders.attn_type = AttentionType.ENCODER_ONLY
        model.context["model.layers.0.mlp.experts"] = nn.Linear(1, 1)
        assert [attention for attention, _ in open_model(model)._layers] == [decoders]


@pytest.mark.parametrize(
    ("upstreams", "ours"),
    [
        ("vllm.worker.cpu_worker.CPUWorker", "vllm.worker.hook_cpu_worker.HookCPUWorker"),
        ("vllm.worker.worker.Worker", "vllm.worker.hook_gpu_worker.HookWorker"),
    ],
)
def test_our_workers_stand_in_upstreams_place(upstreams: str, ours: str) -> None:
    """They are matched by qualified name; another that drops slot copies would leave garbage, and is refused."""
    assert hook_worker_for(upstreams) == hook_worker_for(ours) == ours
    with refused("the worker 'vllm.worker.hpu_worker.HPUWorker'"):
        hook_worker_for("vllm.worker.hpu_worker.HPUWorker")

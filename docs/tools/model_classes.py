# SPDX-License-Identifier: Apache-2.0
"""The architectures that a release of vLLM has, and what their code says of each: read, never imported."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from docs.tools.class_graph import ClassGraph, Definition, words_in

REGISTRY = "vllm.model_executor.models.registry"
SPECS = "vllm.v1.kv_cache_interface"
_FOLLOWED = (
    "vllm.model_executor.models.",
    "vllm.models.",
    "vllm.model_executor.layers.",
    "vllm.v1.attention.backends.",
)

FULL, LATENT, WINDOW, CHUNK, STATE = "full", "latent", "window", "chunk", "state"
CROSS = "CrossAttentionSpec"
KINDS: Mapping[str, str] = {
    "MLAAttentionSpec": LATENT,
    "FullAttentionSpec": FULL,
    "SlidingWindowSpec": WINDOW,
    "ChunkedLocalAttentionSpec": CHUNK,
    "MambaSpec": STATE,
}
"""What a child can share of a layer, by the specification of its KV or by one that this inherits, the nearest first."""


@dataclass(frozen=True)
class Architecture:
    """One of the names in the registry."""

    name: str
    tables: frozenset[str]
    """Upstream's tables that list it, such as ``_TEXT_GENERATION_MODELS``."""

    kinds: frozenset[str]
    """The kinds of layers in its code, or specifications that no child can share; a configuration may use fewer."""

    traits: frozenset[str]
    """Of `TRAITS`, those that are true of it."""

    generates: bool
    """Whether it computes logits of tokens; some that do are listed only among embedding models."""

    is_encoder_decoder: bool
    is_diffusion: bool
    reads_both_ways: bool
    has_named_language_model: bool
    """Whether its configuration names another architecture, which is its language model."""

    is_of_transformers: bool
    """Whether transformers' own code runs, in upstream's Transformers backend."""

    @property
    def is_pooling(self) -> bool:
        """Whether upstream only pools with it."""
        return not self.generates or self.tables.isdisjoint(_GENERATING)


TRAITS = ("is_hybrid", "is_attention_free", "has_inner_state", "supports_mrope", "supports_multimodal")
"""Attributes of classes, by which upstream knows such models too."""

_GENERATING = {"_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS"}
_GENERATING |= {"_TRANSFORMERS_BACKEND_MODELS", "_SPECULATIVE_DECODING_MODELS"}


@dataclass(frozen=True)
class _Code:
    """What the code of one definition says."""

    leads_to: frozenset[Definition]
    """What is part of a model that has it."""

    kinds: frozenset[str]
    """Of the KV that it keeps, if it is a layer; without a window that it must be told."""

    words: frozenset[str]
    """Those in it, if it is no layer."""

    is_told_kinds: frozenset[str]
    """The kinds with such a window."""

    reads_both_ways: bool
    is_encoder_decoder: bool
    has_named_language_model: bool


class Models:
    """The models of the vLLM in a folder."""

    def __init__(self, folder: Path) -> None:
        self._graph = ClassGraph(folder, (*_FOLLOWED, SPECS, "vllm.multimodal.processing"))
        self._codes: dict[Definition, _Code] = {}

    def architectures(self) -> list[Architecture]:
        """All of them, by name."""
        return [self._architecture(name) for name in sorted(self.registered)]

    @cached_property
    def registered(self) -> dict[str, Definition]:
        """Each architecture's module and class."""
        return {name: each for entries in self._tables.values() for name, each in entries.items()}

    @cached_property
    def _tables(self) -> dict[str, dict[str, Definition]]:
        tables = self._graph.node(Definition(REGISTRY, "_VLLM_MODELS"))
        assert isinstance(tables, ast.Dict)
        names = [value.id for value in tables.values if isinstance(value, ast.Name)]
        return {name: self._entries(name) for name in names}

    def _entries(self, name: str) -> dict[str, Definition]:
        table = self._graph.node(Definition(REGISTRY, name))
        assert isinstance(table, ast.Dict)
        found: dict[str, Definition] = {}
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant):
                module, class_name = ast.literal_eval(value)
                is_whole = module.startswith("vllm.")
                module = module if is_whole else f"vllm.model_executor.models.{module}"
                found[str(key.value)] = Definition(module, class_name)
            elif isinstance(value, ast.DictComp):
                # Those of another table whose class is one that the condition names.
                classes = [each.value for each in ast.walk(value) if isinstance(each, ast.Constant)]
                others = self._entries("_TEXT_GENERATION_MODELS")
                found |= {other: each for other, each in others.items() if each.name in classes}
        return found

    def _architecture(self, name: str) -> Architecture:
        graph, classes = self._graph, self._graph.find(self.registered[name])
        codes = [self._code(each) for each in graph.reached(classes, lambda each: self._code(each).leads_to)]
        tables = frozenset(table for table, entries in self._tables.items() if name in entries)
        traits = frozenset(trait for trait in TRAITS if any(self._is_true(each, trait) for each in classes))
        is_encoder_decoder = any(each.is_encoder_decoder for each in codes)
        is_told = any("per_layer_sliding_window" in each.words for each in codes)
        kinds = {kind for each in codes for kind in (each.is_told_kinds if is_told else each.kinds)}
        if traits.isdisjoint(("is_hybrid", "is_attention_free")):
            kinds.discard(STATE)
        if not is_encoder_decoder:
            # Its code is reached from that of an encoder which other models have, too.
            kinds.discard(CROSS)
        return Architecture(
            name=name,
            tables=tables,
            kinds=frozenset(kinds),
            traits=traits,
            generates=any(graph.attribute(each, "compute_logits") is not None for each in classes),
            is_encoder_decoder=is_encoder_decoder,
            is_diffusion=any("canvas_length" in each.words for each in codes),
            reads_both_ways=any(each.reads_both_ways for each in codes),
            has_named_language_model=any(each.has_named_language_model for each in codes),
            is_of_transformers=self.registered[name].module.endswith(".transformers"),
        )

    def _code(self, definition: Definition) -> _Code:
        if definition not in self._codes:
            graph = self._graph
            ancestors = set(graph.ancestors(definition))
            specs = self._specs(definition)
            kinds = frozenset(map(self.kind_of, specs))
            # A layer for all models has a window only if it is told one.
            is_for_all = ".layers." in definition.module
            made = self._made_by_name(definition)
            parts = set() if specs and is_for_all else set(graph.named_by(definition))
            # A layer of a kind of its own is not one of its base's.
            parts -= ancestors if specs else set()
            parts |= {each for name in made or () for each in graph.find(self.registered[name])}
            self._codes[definition] = _Code(
                leads_to=frozenset(each for each in parts if each.module.startswith(_FOLLOWED)),
                kinds=kinds - {WINDOW} if is_for_all and len(kinds) > 1 else kinds,
                words=frozenset() if specs else graph.words(definition),
                is_told_kinds=kinds,
                reads_both_ways=bool(specs) and "non_causal" in words_in(self._method(definition)),
                is_encoder_decoder=any(each.name == "EncDecMultiModalProcessor" for each in ancestors),
                has_named_language_model=made == [],
            )
        return self._codes[definition]

    def _made_by_name(self, definition: Definition) -> list[str] | None:
        """The architectures that the code makes a language model of; none if a configuration names it.

        Returns:
            None if it makes no such model.
        """
        if "init_vllm_registered_model" not in self._graph.words(definition):
            return None
        calls = [each for each in ast.walk(self._graph.node(definition)) if isinstance(each, ast.Call)]
        made = [each for each in calls if ast.unparse(each.func).endswith("init_vllm_registered_model")]
        given = [key.value for call in made for key in call.keywords if key.arg == "architectures"]
        names = [str(each.value) for value in given for each in ast.walk(value) if isinstance(each, ast.Constant)]
        return [name for name in names if name in self.registered] if made else None

    def _is_true(self, definition: Definition, attribute: str) -> bool:
        value = self._graph.attribute(definition, attribute)
        return isinstance(value, ast.Constant) and value.value is True

    def _method(self, layer: Definition) -> ast.AST:
        return self._graph.attribute(layer, "get_kv_cache_spec") or ast.Pass()

    def _specs(self, definition: Definition) -> list[Definition]:
        """The specifications of KV that a layer makes; none if it is no layer, or keeps none."""
        if not isinstance(self._graph.node(definition), ast.ClassDef):
            return []
        words = words_in(self._method(definition)) - {"KVCacheSpec", "AttentionSpec"}
        return [spec for word in words if word.endswith("Spec") for spec in self._graph.find(Definition(SPECS, word))]

    def kind_of(self, spec: Definition) -> str:
        """Of `KINDS`, or the name of a specification that is none of these."""
        return next((KINDS[each.name] for each in self._graph.ancestors(spec) if each.name in KINDS), spec.name)

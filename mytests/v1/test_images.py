# SPDX-License-Identifier: Apache-2.0
"""Children share the images of their request's prompt: they sample what the engine without hooks answers to both."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

# The engine runs in this process, so that its encoder can be watched.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from forkjoin_engine import open_engine

from mytests.fuzz.injection_oracle import Layout
from mytests.fuzz.tree import tree_of
from mytests.harness.tiers import full
from mytests.harness.ties import MIN_GAP, NUM_LOGPROBS, is_same, logprobs_of
from mytests.harness.v1.vision_model import FIRST_OF_IMAGES, VISION, Vision, image
from mytests.harness.v1.vision_oracle import SeeingRows, Seen
from sequence_hooks import SpecialKwargs
from sequence_hooks.config.choices import BlockedKVPolicy, BlockOn, PositionRule
from vllm import RequestOutput, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.floats]

GREEDY = SamplingParams(
    temperature=0.0,
    max_tokens=16,
    ignore_eos=True,
    logprobs=NUM_LOGPROBS,
    allowed_token_ids=list(range(FIRST_OF_IMAGES)),
)
INJECTED = "paddleocr_vl"
INJECT: dict[str, Any] = {"child_merge_strategy": "kv_inject"}
TEXTS = ("abcd", "wxyz", "one two three four five six seven eight nine ten eleven")
IMAGES = (0, 1, 2)
FEW_BLOCKS = {"num_gpu_blocks_override": 7, "block_size": 32, "max_model_len": 128}
"""Fewer than the requests need."""


@contextmanager
def opened(special_kwargs: SpecialKwargs | None, model: str, **options: Any) -> Iterator[Any]:
    """An engine, which ends with the block."""
    engine: Any = open_engine(special_kwargs, model=model, **{"max_model_len": 256, **options})
    yield engine
    engine.llm_engine.engine_core.shutdown()


def asked(engine: Any, prompts: list[tuple[list[int], int]], lengths: list[int] | None = None) -> list[RequestOutput]:
    """The answers to prompts, which are tokens and the seed of an image, each of its length."""
    params = [GREEDY.clone() for _ in prompts]
    for each, length in zip(params, lengths or [], strict=False):
        each.max_tokens = length
    given = [{"prompt_token_ids": ids, "multi_modal_data": {"image": image(seed)}} for ids, seed in prompts]
    outputs: list[RequestOutput] = engine.generate(given, params, use_tqdm=False)
    return outputs


def num_encoded(engine: Any, vision: Vision) -> list[int]:
    """The number of images in each call of the engine's encoder from now on."""
    model, counts = engine.llm_engine.model_executor.driver_worker.worker.model_runner.model, []
    encode = model.embed_multimodal

    def counting(**given: Any) -> Any:
        counts.append(vision.num_images(given))
        return encode(**given)

    model.embed_multimodal = counting
    return counts


Question = tuple[list[int], tuple[int, ...]]
"""A context, and the tokens that must follow it."""


def questions(output: RequestOutput) -> list[Question]:
    """Each run of tokens that a sequence of the tree has sampled, after all that it saw."""
    assert output.prompt_token_ids is not None
    (root,) = output.outputs
    found: list[Question] = []
    waiting: list[tuple[list[int], Any]] = [(list(output.prompt_token_ids), root)]
    while waiting:
        prompt, sequence = waiting.pop()
        context = prompt + list(sequence.token_ids)
        runs = [segment for segment in sequence.segments if segment.origin == "sampled"]
        ends = [(each.start, each.end) for each in runs] or [(0, len(sequence.token_ids))]
        found += [(context[: len(prompt) + start], tuple(sequence.token_ids[start:end])) for start, end in ends]
        waiting += [(context[: child.num_shared] + list(child.prefix_token_ids), child) for child in sequence.children]
    return found


def hooks(vision: Vision, block_on: BlockOn, policy: BlockedKVPolicy) -> SpecialKwargs:
    """Two children at each token that the model is fond of."""
    return SpecialKwargs(
        promise_token_id=vision.promise,
        sync_token_id=vision.sync,
        block_on=block_on,
        children_per_promise=2,
        child_prefix_token_ids=((7,), (8, 9)),
        child_sampling_params={"max_tokens": 30},
        merge_separator="",
        blocked_kv_policy=policy,
    )


@pytest.mark.parametrize(
    ("name", "is_scarce", "block_on"),
    [
        full("blip-2", True, "promise", id="blip-2-scarce-promise"),
        full("blip-2", False, "sync", id="blip-2-ample-sync"),
        full("blip-2", False, "promise", id="blip-2-ample-promise"),
        full("paddleocr_vl", False, "sync", id="paddleocr_vl-ample-sync"),
        full("paddleocr_vl", True, "promise", id="paddleocr_vl-scarce-promise"),
        full("paddleocr_vl", True, "sync", id="paddleocr_vl-scarce-sync"),
    ],
)
def test_trees_see_their_images(tmp_path: Path, name: str, block_on: BlockOn, is_scarce: bool) -> None:
    """Every sequence does; with room for all KV each image is encoded once, however many children its request has."""
    vision, model, options = VISION[name], str(tmp_path), FEW_BLOCKS if is_scarce else {}
    vision.save(tmp_path)
    with opened(hooks(vision, block_on, "discard" if is_scarce else "auto"), model, **options) as engine:
        tokenizer, encoded = engine.get_tokenizer(), num_encoded(engine, vision)
        prompts = [(vision.prompt(tokenizer, text), seed) for text in TEXTS for seed in IMAGES]
        outputs = asked(engine, prompts)
        scheduler = engine.llm_engine.engine_core.engine_core.scheduler
        scheduler.check_integrity()
        assert not scheduler.requests
        assert scheduler.evictor.evictions["discard"] > 0 if is_scarce else sum(encoded) == len(IMAGES)
    asks = [
        (context, expected, seed)
        for output, (_, seed) in zip(outputs, prompts, strict=True)
        for context, expected in questions(output)
    ]
    assert len(asks) > 2 * len(prompts)
    with opened(None, model) as plain:
        contexts = [(vision.unexpanded(tokenizer, context), seed) for context, _, seed in asks]
        outputs = asked(plain, contexts, [len(sampled) for _, sampled, _ in asks])
    same = [
        is_same(sampled, output.outputs[0].token_ids, logprobs_of(output.outputs[0]))
        for (_, sampled, _), output in zip(asks, outputs, strict=True)
    ]
    assert sum(same) > 0.9 * len(same)


@pytest.mark.parametrize(("block_on", "position_rule"), [("promise", "sequential"), full("sync", "overlap")])
def test_kv_is_injected_after_an_image(tmp_path: Path, block_on: BlockOn, position_rule: PositionRule) -> None:
    """Where an image takes more tokens than positions, what follows it moves as far as any text."""
    vision = VISION[INJECTED]
    vision.save(tmp_path)
    with opened(
        replace(hooks(vision, block_on, "auto"), **INJECT, position_rule=position_rule), str(tmp_path)
    ) as engine:
        tokenizer = engine.get_tokenizer()
        prompts = [(vision.prompt(tokenizer, text), seed) for text in TEXTS for seed in IMAGES]
        outputs = asked(engine, prompts)
        engine.llm_engine.engine_core.engine_core.scheduler.check_integrity()
    num_injected = 0
    for output, (prompt, seed) in zip(outputs, prompts, strict=True):
        root = Layout(tree_of(output), position_rule, {})
        wanted = [token for each in root.walk() for token in each.sampled_from.values()]
        rows = SeeingRows(Seen(tmp_path, image(seed), tokenizer.decode(prompt)), root, wanted)
        for each in root.walk():
            num_injected += each.num_injected
            logits = rows.logits([*each.sampled_from.values()])[:, :FIRST_OF_IMAGES].log_softmax(-1)
            for row, place in zip(logits, each.sampled_from, strict=True):
                assert row[each.node.tokens[place]] > row.max() - MIN_GAP
    assert num_injected > 50

# SPDX-License-Identifier: Apache-2.0
"""Children share the images of their request's prompt, on a real engine with a tiny model that sees them.

The oracle is the engine without hooks: what each sequence samples is what that engine answers to the same image and the
sequence's context as a prompt.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# The engine runs in this process, so that its encoder can be watched.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from forkjoin_engine import open_engine

from mytests.tiers import full
from mytests.ties import NUM_LOGPROBS, is_same, logprobs_of
from mytests.v1.vision_model import NUM_IMAGE_TOKENS, image, save_model
from sequence_hooks import SpecialKwargs
from sequence_hooks.config.choices import BlockedKVPolicy, BlockOn
from vllm import RequestOutput, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.floats]

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=NUM_LOGPROBS)
TEXTS = ("abcd", "wxyz", "one two three four five six seven eight nine ten eleven")
IMAGES = (0, 1, 2)
FEW_BLOCKS = {"num_gpu_blocks_override": 7, "block_size": 32, "max_model_len": 128}
"""Fewer than the requests need."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model's folder."""
    return save_model(tmp_path_factory.mktemp("vision"))


@contextmanager
def opened(special_kwargs: SpecialKwargs | None, model: str, **options: Any) -> Iterator[Any]:
    """An engine, which ends with the block."""
    engine: Any = open_engine(special_kwargs, model=model, **{"max_model_len": 256, **options})
    yield engine
    engine.llm_engine.engine_core.shutdown()


def asked(engine: Any, prompts: list[tuple[list[int], int]], lengths: list[int] | None = None) -> list[RequestOutput]:
    """The answers to prompts, which are tokens and the seed of an image.

    Args:
        lengths: How many tokens to sample after each.
    """
    params = [GREEDY.clone() for _ in prompts]
    for each, length in zip(params, lengths or [], strict=False):
        each.max_tokens = length
    given = [{"prompt_token_ids": ids, "multi_modal_data": {"image": image(seed)}} for ids, seed in prompts]
    outputs: list[RequestOutput] = engine.generate(given, params, use_tqdm=False)
    return outputs


def num_encoded(engine: Any) -> list[int]:
    """The number of images in each call of the engine's encoder from now on."""
    model, counts = engine.llm_engine.model_executor.driver_worker.worker.model_runner.model, []
    encode = model.embed_multimodal

    def counting(**given: Any) -> Any:
        counts.append(len(given["pixel_values"]))
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


def hooks(block_on: BlockOn, policy: BlockedKVPolicy) -> SpecialKwargs:
    """Two children at each token that the model is fond of."""
    return SpecialKwargs(
        promise_token_id=13,
        sync_token_id=4,
        block_on=block_on,
        children_per_promise=2,
        child_prefix_token_ids=((7,), (8, 9)),
        child_sampling_params={"max_tokens": 30},
        merge_separator="",
        blocked_kv_policy=policy,
    )


@pytest.mark.parametrize(
    ("is_scarce", "block_on"),
    [
        pytest.param(False, "sync", id="ample-sync"),
        pytest.param(True, "promise", id="scarce-promise"),
        full(False, "promise", id="ample-promise"),
        full(True, "sync", id="scarce-sync"),
    ],
)
def test_trees_see_their_images(model: str, block_on: BlockOn, is_scarce: bool) -> None:
    """Every sequence does; with room for all KV each image is encoded once, however many children its request has."""
    options = FEW_BLOCKS if is_scarce else {}
    with opened(hooks(block_on, "discard" if is_scarce else "auto"), model, **options) as engine:
        encode, encoded = engine.get_tokenizer().encode, num_encoded(engine)
        prompts = [(encode(text), seed) for text in TEXTS for seed in IMAGES]
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
    assert len(asks) > 3 * len(prompts)
    with opened(None, model) as plain:
        contexts = [(context[NUM_IMAGE_TOKENS:], seed) for context, _, seed in asks]
        outputs = asked(plain, contexts, [len(sampled) for _, sampled, _ in asks])
    same = [
        is_same(sampled, output.outputs[0].token_ids, logprobs_of(output.outputs[0]))
        for (_, sampled, _), output in zip(asks, outputs, strict=True)
    ]
    assert sum(same) > 0.9 * len(same)

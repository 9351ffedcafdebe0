# SPDX-License-Identifier: Apache-2.0
"""An engine with hooks in this process, whose trees follow scripts, and whose scheduler can be looked at."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sequence_hooks import SpecialKwargs
from sequence_hooks.tree.integrity import IntegrityError
from sequence_hooks.v1.core.kv_groups import state_managers
from sequence_hooks.v1.core.scheduler import HookScheduler
from sequence_hooks.v1.frontend.outputs import RequestOutput
from sequence_hooks.v1.selfcheck.script import MAX_TOKENS, EveryToken, script_of
from sequence_hooks.v1.settings import engine_args
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.engine.llm_engine import LLMEngine

HOOKS = SpecialKwargs(
    handlers={0: "sequence_hooks.v1.selfcheck.script.Scripted"}, max_child_depth=2, max_children=4, merge_separator=""
)
"""The handler is named for one token; `EveryToken` asks it about all."""

SHORTEST_PROMPT = 7
LONGEST_PROMPT = 2
"""In blocks, of those that are not to be longer than a window."""

LENGTHS = (0.5, 1, 1.5, LONGEST_PROMPT)
"""The lengths of prompts, in blocks: a fork then shares full blocks, and one that is partly full."""

TEXT = (
    "the stone lies under the apple tree near the river and a bird sings to it while seven men carry water from the "
    "well to the old house where a woman writes letters to her sister about the winter the long road and the sea "
)
MIN_VARIETY = 10
"""Different tokens of the text. A tokenizer that knows fewer of its words makes all prompts alike."""

MAX_STEPS = 5000
"""After which we assume a hang; no check takes a tenth of it."""


class Trees:
    """See the module's docstring.

    Raises:
        ValueError: hooks refuse the engine, or it has too little room for a tree.
    """

    def __init__(self, arguments: EngineArgs) -> None:
        for name, value in engine_args(HOOKS, additional_config=arguments.additional_config).items():
            setattr(arguments, name, value)
        self.engine = LLMEngine.from_engine_args(arguments)
        client = self.engine.engine_core
        assert isinstance(client, InprocClient), "the engine's core runs in this process"
        self._core = client.engine_core
        scheduler = self._core.scheduler
        assert isinstance(scheduler, HookScheduler)
        self.scheduler = scheduler
        (handler,) = scheduler.driver.triggers.by_id.values()
        scheduler.driver.triggers = EveryToken(handler)
        self.block_size = scheduler.block_size
        kv_groups = scheduler.kv_cache_config.kv_cache_groups
        groups = [group.kv_cache_spec for group in kv_groups]
        self._num_groups = len(groups)
        self._layers = Counter(type(each.kv_cache_spec).__name__ for each in kv_groups for _ in each.layer_names)
        self.lengths = (*LENGTHS, *_beyond_windows(groups, self.block_size))
        """Those of `LENGTHS`, and one that no window of the model's layers holds."""

        has_states = bool(state_managers(scheduler.kv_cache_manager))
        self.may_have_last = has_states and scheduler.scheduler_config.async_scheduling
        """Whether a step in flight may have computed a parent's last token for good, as it does in a state."""

        model = self.engine.model_config
        tokenizer = None if model.skip_tokenizer_init else self.engine.get_tokenizer()
        self._prompts = Prompts(tokenizer, model.get_vocab_size())
        self._most = model.max_model_len - MAX_TOKENS
        if self._most < SHORTEST_PROMPT:
            raise ValueError(
                f"max_model_len is {model.max_model_len}; the checks need at least {SHORTEST_PROMPT + MAX_TOKENS}"
            )
        self.prompts: list[list[int]] = []
        """All that it was given."""

        self.outputs: dict[str, RequestOutput] = {}

    def describe(self) -> str:
        """The engine in a few words."""
        config = self.engine.vllm_config
        runner = "V2" if config.use_v2_model_runner else "V1"
        schedule = "asynchronous" if config.scheduler_config.async_scheduling else "synchronous"
        blocks = f"{self._pool.num_gpu_blocks} blocks of {self.block_size} tokens"
        layers = ", ".join(f"{count} of {kind}" for kind, count in self._layers.items())
        return f"{config.model_config.dtype}, {runner} model runner, {schedule} scheduling, {blocks}; layers: {layers}"

    def add(self, request_id: str, num_blocks: float = 1, offset: int = -3) -> None:
        """Start a request that follows the script that it is named after.

        Args:
            num_blocks: Of a new prompt, which has ``offset`` more tokens than they have.
        """
        length = int(num_blocks * self.block_size) + offset
        prompt = self._prompts.take(min(max(length, SHORTEST_PROMPT), self._most))
        self.prompts.append(prompt)
        most = script_of(request_id).num_sampled
        params = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True, logprobs=0, detokenize=False)
        self.engine.add_request(request_id, {"prompt_token_ids": prompt}, params)

    def fits(self, num_blocks: int) -> bool:
        """Whether a prompt may have so many blocks, and a context grows beyond them."""
        return num_blocks * self.block_size <= self._most

    def step(self) -> None:
        """One step of the engine."""
        for output in self.engine.step():
            if output.finished:
                assert isinstance(output, RequestOutput)
                self.outputs[output.request_id] = output

    def run(self) -> None:
        """Step until all requests have finished, and no step is in flight.

        Raises:
            RuntimeError: they do not finish.
        """
        for _ in range(MAX_STEPS):
            if not self.engine.has_unfinished_requests() and not self._core.batch_queue:
                return
            self.step()
        raise RuntimeError(f"{sorted(self.scheduler.requests)} have not finished after {MAX_STEPS} steps")

    def abort(self, request_ids: Iterable[str]) -> None:
        """Abort requests, as a client does that goes away."""
        self.engine.abort_request(list(request_ids))

    def take_outputs(self) -> list[RequestOutput]:
        """The outputs of the requests that have finished since the last call."""
        taken, self.outputs = list(self.outputs.values()), {}
        return taken

    @contextmanager
    def scarce(self) -> Iterator[None]:
        """Leave so few blocks of KV cache that a tree has room, and not two; the engine must be empty."""
        num_left = self._num_groups * (LONGEST_PROMPT + 2 * -(-MAX_TOKENS // self.block_size) + 1)
        self.engine.reset_prefix_cache()
        taken = self._pool.get_new_blocks(self._pool.get_num_free_blocks() - num_left)
        try:
            yield
        finally:
            self._pool.free_blocks(taken)

    def leftovers(self) -> list[str]:
        """What an engine without requests still holds, and must not."""
        left = [f"the scheduler still has {name}" for name in self.scheduler.requests]
        left += [f"{name} is still BLOCKED" for name in self.scheduler.blocked]
        # The first block is upstream's null block, which nobody can have.
        num_missing = self._pool.num_gpu_blocks - 1 - self._pool.get_num_free_blocks()
        if num_missing:
            left.append(f"{num_missing} blocks are not free")
        return left + self.imbalance()

    def imbalance(self) -> list[str]:
        """The counts of queues, trees and blocks that do not add up."""
        try:
            self.scheduler.check_integrity()
        except IntegrityError as error:
            return [str(error)]
        return []

    @property
    def _pool(self) -> BlockPool:
        return self.scheduler.kv_cache_manager.block_pool


def _beyond_windows(specs: Iterable[Any], block_size: int) -> list[float]:
    """The length of a prompt in blocks that is longer than each window or chunk; none if no layer has one."""
    sizes = [getattr(spec, name, None) for spec in specs for name in ("sliding_window", "attention_chunk_size")]
    return [max(filter(None, sizes)) / block_size + 1] if any(sizes) else []


class Prompts:
    """Each differs from its first token on: slices of one text that start at different places; of random ids where the
    tokenizer does not know the text."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._token_ids = _ids(tokenizer, vocab_size)
        self._num_taken = 0

    def take(self, length: int) -> list[int]:
        """The next prompt, of ``length`` token ids."""
        start = 7 * self._num_taken
        self._num_taken += 1
        return [self._token_ids[(start + index) % len(self._token_ids)] for index in range(length)]


def _ids(tokenizer: Any, vocab_size: int) -> Sequence[int]:
    token_ids: Sequence[int] = () if tokenizer is None else tokenizer.encode(TEXT, add_special_tokens=False)
    if len(set(token_ids)) >= MIN_VARIETY:
        return token_ids
    draw = random.Random(0)
    return [draw.randrange(vocab_size) for _ in range(200)]

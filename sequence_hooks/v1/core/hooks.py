# SPDX-License-Identifier: Apache-2.0
"""The hooks of one engine: what its configuration says, with the collaborators that carry it out."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.field_checks import BUILT_IN_MERGES
from sequence_hooks.config.limits import Limits, limits_of
from sequence_hooks.config.tokens import check_vocabulary, with_token_ids
from sequence_hooks.tree.log import HookLog, ToldOnce
from sequence_hooks.v1.core.decider import Decider
from sequence_hooks.v1.core.merger import Merger
from sequence_hooks.v1.core.params import Completion, verify_params
from sequence_hooks.v1.core.sequence import V1Sequence, params_of
from sequence_hooks.v1.core.texts import TokenTexts, has_stop_strings
from sequence_hooks.v1.settings import special_kwargs_of
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

# Below upstream's logger, which has the handlers.
logger = init_logger(f"vllm.{__name__}")


@dataclass(frozen=True)
class Hooks:
    """What the scheduler asks about hook tokens, and about the sequences that sample them."""

    special_kwargs: SpecialKwargs
    """Gives every token by its id."""

    tokenizer: Any
    decider: Decider
    merger: Merger

    @classmethod
    def of(
        cls,
        config: VllmConfig,
        grammars: StructuredOutputManager,
        tokenizer: Any = None,
        vocab_size: int | None = None,
    ) -> "Hooks":
        """The hooks that ``config`` asks for.

        Args:
            tokenizer, vocab_size: Instead of the model's.

        Raises:
            ValueError: a field has an invalid value, or the configuration has no hooks.
        """
        model = config.model_config
        tokenizer = tokenizer or cached_tokenizer_from_config(model)
        special_kwargs = special_kwargs_of(config)
        if special_kwargs is None:
            raise ValueError("special_kwargs: this scheduler is for sequence hooks, and none are configured")
        special_kwargs = with_token_ids(special_kwargs, tokenizer)
        vocab_size = vocab_size or model.get_vocab_size()
        check_vocabulary(special_kwargs, vocab_size)
        log = HookLog(logger, ToldOnce())
        eos_token_id = None if tokenizer is None else tokenizer.eos_token_id
        verify = partial(verify_params, config=config, tokenizer=tokenizer)
        completion = Completion(tokenizer, eos_token_id, model.try_get_generation_config(), verify)
        limits = model.max_model_len, vocab_size
        decider = Decider(special_kwargs, completion, *limits, grammars, log)
        return cls(special_kwargs, tokenizer, decider, Merger(tokenizer, *limits, log))

    def limits_of(self, request: Request) -> Limits:
        """How far the request's tree may grow."""
        return limits_of(self.special_kwargs, params_of(request).extra_args)

    def sequence_of(self, request: Request) -> V1Sequence:
        """The request as the rules see it."""
        params = params_of(request)
        texts = None
        if has_stop_strings(params) and self.tokenizer is not None:
            num_prompt = len(request.all_token_ids) - request.num_output_tokens
            texts = TokenTexts(self.tokenizer, params, request.all_token_ids[:num_prompt])
        return V1Sequence(request, self._result if self._reads_texts else _no_text, texts)

    def decode(self, token_ids: Sequence[int], skips_special_tokens: bool) -> str:
        """The text of tokens; empty if the engine has no tokenizer."""
        if self.tokenizer is None:
            return ""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=skips_special_tokens)
        return text

    @property
    def _reads_texts(self) -> bool:
        """Whether user-defined code may read the texts of children."""
        is_built_in = self.special_kwargs.child_merge_strategy in BUILT_IN_MERGES
        return not is_built_in or bool(self.special_kwargs.named_handlers)

    def _result(self, token_ids: Sequence[int]) -> str:
        return self.decode(token_ids, True)


def ending_of(sequence: V1Sequence, token_id: int) -> range | None:
    """The output tokens that ended a sequence, with ``token_id`` as the last one; None if it goes on.

    A stop string ends it like a stop token, which wins if both do.
    """
    request, num_output = sequence.request, len(sequence.output_token_ids)
    stop = sequence.sampled(token_id)
    if stop is not None and request.status not in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_REPETITION):
        request.status, request.stop_reason = RequestStatus.FINISHED_STOPPED, stop.string
        return range(stop.num_tokens, num_output)
    if not request.is_finished():
        return None
    return range(num_output - 1, num_output) if request.status == RequestStatus.FINISHED_STOPPED else range(0)


def _no_text(token_ids: Sequence[int]) -> str:
    return ""

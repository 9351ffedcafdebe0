# SPDX-License-Identifier: Apache-2.0
"""The content of requests: their tokens, texts and parameters, and the requests of children."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.field_checks import BUILT_IN_MERGES
from sequence_hooks.text.continuing import continuing_ids
from sequence_hooks.tree.child_params import combined
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.rules import Merge
from sequence_hooks.v1.core.params import ParamsCompleter, child_params, inherit, verify_params
from sequence_hooks.v1.core.requests import cut_context, make_like
from sequence_hooks.v1.core.sequence import V1Branch, V1Sequence, params_of
from sequence_hooks.v1.core.stop_strings import StopStringChecker
from sequence_hooks.v1.settings import special_kwargs_of
from sequence_hooks.v1.wire import bare_request
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

_POLL_SECONDS = 0.002


class ChildRequests:
    """Makes the requests of children, and appends to those of parents; a `sequence_hooks.tree.port.SequencePort`.

    Args:
        special_kwargs: Gives every token by its id.
        completer: Completes the parameters of children, and has the tokenizer.
        grammars: Compiles the grammars of children.
        max_model_len: The most tokens that a context may have.
        vocab_size: Token ids are below it.
    """

    def __init__(
        self,
        special_kwargs: SpecialKwargs,
        completer: ParamsCompleter,
        grammars: StructuredOutputManager,
        max_model_len: int,
        vocab_size: int,
    ) -> None:
        self.special_kwargs = special_kwargs
        self.tokenizer = completer.tokenizer
        self.vocab_size = vocab_size
        self._completer = completer
        self._grammars = grammars
        self._model_len = max_model_len
        # Only user-defined code may read the texts of children.
        is_built_in = special_kwargs.child_merge_strategy in BUILT_IN_MERGES
        reads_texts = not is_built_in or bool(special_kwargs.named_handlers)
        self._text_of = partial(self.decode, skips_special_tokens=True) if reads_texts else lambda token_ids: ""

    @classmethod
    def of(
        cls,
        config: VllmConfig,
        grammars: StructuredOutputManager,
        tokenizer: Any = None,
        vocab_size: int | None = None,
    ) -> "ChildRequests":
        """For an engine with the hooks of ``config``, whose tokens the front end has looked up.

        Args:
            tokenizer, vocab_size: Instead of the model's.

        Raises:
            ValueError: the configuration has no hooks.
        """
        model = config.model_config
        tokenizer = tokenizer or cached_tokenizer_from_config(model)
        special_kwargs = special_kwargs_of(config)
        if special_kwargs is None:
            raise ValueError("special_kwargs: this scheduler is for sequence hooks, and none are configured")
        vocab_size = vocab_size or int(model.get_vocab_size())
        eos_token_id = None if tokenizer is None else tokenizer.eos_token_id
        verify = partial(verify_params, config=config, tokenizer=tokenizer)
        completer = ParamsCompleter(tokenizer, eos_token_id, model.try_get_generation_config(), verify)
        return cls(special_kwargs, completer, grammars, model.max_model_len, vocab_size)

    def compile(self, regexes: Iterable[str]) -> None:
        """Compile grammars, which upstream keeps, so that no client waits. One that fails now also fails when used."""
        compiling = []
        for regex in regexes:
            params = SamplingParams(max_tokens=1, structured_outputs=StructuredOutputsParams(regex=regex))
            bare = bare_request("a-grammar", [0], self._completer.complete(params))
            request = Request.from_engine_core_request(bare, None)
            self._grammars.grammar_init(request)
            compiling.append(request.structured_output_request)
        for each in compiling:
            with suppress(Exception):
                while each is not None and not each.is_grammar_ready:
                    time.sleep(_POLL_SECONDS)

    def sequence_of(self, request: Request) -> V1Sequence:
        """A request as the rules see it."""
        params, checker = params_of(request), None
        if params.stop and params.detokenize and self.tokenizer is not None:
            num_prompt = len(request.all_token_ids) - request.num_output_tokens
            checker = StopStringChecker(self.tokenizer, params, request.all_token_ids[:num_prompt])
        return V1Sequence(request, self._text_of, checker)

    def decode(self, token_ids: Sequence[int], skips_special_tokens: bool) -> str:
        """The text of tokens; empty if the engine has no tokenizer."""
        if self.tokenizer is None:
            return ""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=skips_special_tokens))

    def max_len(self, sequence: V1Sequence) -> int:
        """The most tokens that the context of a sequence may have: as many as the model takes."""
        return self._model_len

    def encode(self, sequence: V1Sequence, text: str) -> Sequence[int]:
        return continuing_ids(text, self.tokenizer)

    def make_child(
        self, parent: V1Branch, spec: ChildSpec, own_params: SamplingParams | Mapping[str, Any] | None
    ) -> V1Sequence:
        """The request of a child: WAITING, without blocks, and not yet in a queue or a tree.

        Its prompt is what it shares of its parent's context, then the prefix.
        """
        overrides = combined(self.special_kwargs.child_sampling_params, own_params, inherit)
        params = child_params(parent, overrides, spec.number, self._completer)
        request = parent.sequence.request
        # A context may be long: it is copied once.
        prompt: list[int] = request.all_token_ids[: spec.num_shared]
        prompt.extend(spec.prefix_token_ids)
        # Their KV is shared, and only recomputed if it is lost: then the encoder's cache may still have them.
        places = ((each, each.mm_position) for each in request.mm_features)
        shared = [each for each, place in places if place.offset + place.length <= spec.num_shared]
        child = make_like(request, spec.request_id, prompt, params, shared)
        if spec.context == "parent":
            # Its first blocks are those of its parent, whose hashes are known.
            child.block_hashes = list(request.block_hashes)
        child.update_block_hashes()
        if child.use_structured_output:
            self._grammars.grammar_init(child)
        return self.sequence_of(child)

    def append_merge(self, branch: V1Branch, merge: Merge) -> None:
        """Cut what a join replaces from the context of a request, and append what it merges. The request may have
        ended with it.
        """
        if merge.num_replaced:
            branch.sequence.keep_output(merge.num_kept)
            cut_context(branch.sequence.request, merge.num_kept)
        for span in merge.spans:
            branch.sequence.append_merged(span.token_ids)
        if merge.outcome is not None:
            branch.sequence.note_end(_ENDS[merge.outcome])


_ENDS = {"length": RequestStatus.FINISHED_LENGTH_CAPPED, "stopped": RequestStatus.FINISHED_STOPPED}
"""The status of a request that ends with a join."""

# SPDX-License-Identifier: Apache-2.0
"""How the engines differ, as far as the fuzzers' histories and their oracles are concerned."""

from collections.abc import Callable
from dataclasses import dataclass

from mytests.harness.installed import IS_V1
from mytests.harness.v1.paths import PATH, RUNNER

Words = tuple[int, ...]


@dataclass(frozen=True)
class Dialect:
    """What one engine does otherwise than the other; the defaults are V0's."""

    block_size: int = 16
    prefix_caching: tuple[bool, ...] = (False, True)
    """The choices; the first is the default, as in the next fields."""

    chunked_prefill: tuple[bool, ...] = (True,)
    """Whether a prefill may take several steps."""

    async_output: tuple[bool, ...] = (False, True)
    """Whether outputs may be processed while the next step runs."""

    architectures: tuple[str, ...] = ("llama", "qwen3")
    """Of `mytests.fuzz.architectures`, those that it runs; the first is the default."""

    speculation: tuple[str, ...] = ("",)
    """What may draft tokens: nothing, n-grams, the model itself, or another model that often samples the same."""

    speculation_in_stages: tuple[str, ...] = ("",)
    """The same where a pipeline has several stages."""

    has_adapted_drafts: bool = True
    """Whether an engine with adapters may speculate."""

    stages: tuple[int, ...] = (1,)
    """How many stages a pipeline may have in `make fuzz-plugin`; tests have no time for the processes."""

    connected: frozenset[str] = frozenset()
    """The architectures whose KV a connector may save and load."""

    missing: frozenset[str] = frozenset()
    """The features of requests that it does not have."""

    grammar_field: str = "guided_decoding"
    """The field of `SamplingParams` for grammars."""

    grammar_backends: tuple[str, ...] = ("xgrammar", "outlines")
    """Those that each grammar of one engine may choose; empty if all have the engine's."""

    engine_grammar_backends: tuple[str, ...] = ("auto",)
    """Those that an engine may choose for all of its grammars."""

    least_adapter: int = 0
    """The least number of an adapter on an engine that has some; 0 is none."""

    stops_within_grammars: bool = True
    """Whether a grammar may have words that are also stop tokens."""

    stop_strings_within_stop_tokens: bool = False
    """Whether a stop string is looked for in the text of a token that has ended its sequence, where that is kept."""

    joins_special_tokens: bool = False
    """Whether special tokens in a row can be written without spaces."""

    has_cached_prompt_logprobs: bool = False
    """Whether a request may ask for prompt logprobs on an engine with prefix caching."""

    has_adapted_prompt_logprobs: bool = True
    """Whether a request may ask for prompt logprobs on an engine with adapters."""

    least_chunk: tuple[int, int] = (8, 16)
    """The least number of tokens in a step, without and with prefix caching."""

    become_processors: frozenset[str] = frozenset({"grammar", "logit_bias", "allowed_token_ids", "bad_words"})
    """Parameters that become logits processors. Where a child has one of its own, it has none of its parent's."""

    cutoffs: tuple[str, ...] = ("top_k", "top_p", "min_p")
    """The order in which unlikely tokens are cut off."""

    least_for_stop_string: int = 0
    """The number of tokens beyond ``min_tokens`` with which a stop string is looked for."""

    has_raw_prompt_logprobs: bool = False
    """Whether they come from the model's logits as they are, instead of as the sampler would change them."""

    gives_up_all_kv: bool = False
    """Whether a BLOCKED sequence gives up all its KV at once, before any that runs is preempted."""

    kept_of_cut: Callable[[int], int] = lambda num_tokens: num_tokens // 16 * 16
    """How many of the first tokens of a context keep their KV if it is cut after them: on V0 whole blocks."""

    kept_before_injected: Callable[[int], int] = lambda num_tokens: (num_tokens - 1) // 16 * 16
    """How many do if it is cut within injected KV, which begins after them: no block whose hash says so."""

    sample_name: Callable[[str, int], str] = lambda request_id, index: f"{request_id}_parallel_sample_{index}"
    """The id of one of several samples of a request."""

    rank_of_stop: Callable[[int, int], int] = lambda order, end: order
    """Of two stop strings that one token completes, the one of the lower rank stops; see `fuzz_text.find_stop`."""

    seen_by_plan: Callable[[Words, Words, Words], tuple[Words, int]] = lambda prompt, context, past: (prompt, len(past))
    """What a plan decides by: a prompt, and the number of tokens sampled after it.

    It is computed from a sequence's own prompt, its whole context, and which tokens it has sampled itself. V0 hides
    merged tokens from logits processors.
    """


_DRAFTS = "ngram", "itself", "noisy"
V1 = Dialect(
    # Attention on the CPU takes no other.
    block_size=32,
    prefix_caching=(True, False),
    chunked_prefill=(True, False),
    async_output=(False,),
    architectures=(
        *("llama", "qwen3", "gemma3_text", "gpt_oss", "qwen3_moe", "deepseek_v3"),
        *("mistral", "exaone4", "mamba2", "falcon_h1", "granitemoehybrid", "lfm2"),
    ),
    # No plan follows drafts of the first runner's asynchronous steps. The second one's kernels for them are slow here.
    speculation=(*("",) * (3 if RUNNER == "first" else 27), *(_DRAFTS if PATH != "first-asynchronous" else ())),
    # Only there can upstream speculate with stages, and not with a draft model.
    speculation_in_stages=("", "ngram") if PATH == "second-asynchronous" else ("",),
    # Upstream's second runner applies an adapter of the head to as many rows as there are requests.
    has_adapted_drafts=RUNNER == "first",
    # Upstream's first runner takes none where it schedules asynchronously, and the second one's kernels are slow here.
    stages=(*(1,) * 9, 2) if PATH == "first-synchronous" else (1,),
    connected=frozenset({"llama", "qwen3", "qwen3_moe"}),
    # Prompts are truncated where they are rendered.
    missing=frozenset({"truncate"}),
    grammar_field="structured_outputs",
    grammar_backends=(),
    engine_grammar_backends=("xgrammar", "outlines"),
    # Upstream's CPU kernels give requests without an adapter that of the last slot.
    least_adapter=1,
    stops_within_grammars=False,
    stop_strings_within_stop_tokens=True,
    joins_special_tokens=True,
    has_cached_prompt_logprobs=True,
    # Upstream applies an adapter of the head to as many rows as are sampled.
    has_adapted_prompt_logprobs=False,
    least_chunk=(8, 8),
    become_processors=frozenset(),
    cutoffs=("min_p", "top_k", "top_p"),
    least_for_stop_string=1,
    has_raw_prompt_logprobs=True,
    gives_up_all_kv=True,
    kept_of_cut=lambda num_tokens: num_tokens,
    kept_before_injected=lambda num_tokens: num_tokens,
    sample_name=lambda request_id, index: f"{index}_{request_id}",
    rank_of_stop=lambda order, end: end,
    # After a join, everything before it counts as prompt.
    seen_by_plan=lambda prompt, context, past: (context, 0),
)
DIALECT = V1 if IS_V1 else Dialect()
"""That of the vLLM that is installed."""

# SPDX-License-Identifier: Apache-2.0
"""How the fuzzer's histories are drawn, and which features may be combined in one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from hypothesis import strategies as st

from benchmarks.check_upstream.workload import VOCABULARY
from mytests.fuzz.adapters import NUM_ADAPTERS
from mytests.fuzz.architectures import LLAMA, STATES
from mytests.fuzz.history import BLOCK_SIZE, POLICIES, SEPARATORS, Abort, History, Request, Setup
from mytests.fuzz.model import EOS, PROMISE, SYNC, word
from mytests.fuzz.params import PLAIN, Params, grammars
from mytests.fuzz.plan import LONGEST
from mytests.fuzz.rules import TEXTS
from mytests.harness.dialect import DIALECT
from sequence_hooks.config.choices import BlockOn, ChildContext, PositionRule

ARCHITECTURES = (LLAMA,) * (len(DIALECT.architectures) - 1) + DIALECT.architectures[1:]
"""Every other history has the Llama, which alone has adapters."""

MAX_FEATURES = 4
"""The maximum number of features in one request's parameters."""

MAX_SPARE_TOKENS = 384
"""The maximum length of KV beyond that of the longest sequence."""

MAX_PREFIX = 4
_words = st.integers(7, VOCABULARY - 1)
# A few tokens before and after the end of a block, beside all others.
_prompt_lengths = st.integers(1, 90) | st.builds(
    lambda num_blocks, offset: num_blocks * BLOCK_SIZE + offset, st.integers(1, 80 // BLOCK_SIZE), st.integers(-5, 2)
)
_OF_PLANS = (EOS, PROMISE, SYNC)


def _floats(low: int, high: int) -> st.SearchStrategy[float]:
    return st.integers(low * 10, high * 10).map(lambda tenths: tenths / 10)


def _ends_of(words: tuple[int, int, int]) -> str:
    """The last characters of one word, or of two consecutive ones."""
    first, count, length = words
    return " ".join(map(word, range(first, first + count)))[-length:]


_ANY_TWO = "9 w"
"""What any two words may have between them, such as the last of a child and the next of its parent."""

_stops = st.tuples(st.integers(7, VOCABULARY - 2), st.integers(1, 2), st.integers(1, 7)).map(_ends_of)
_FEATURES: Mapping[str, Mapping[str, st.SearchStrategy[Any]]] = {
    "sampled": {
        "temperature": _floats(0, 2),
        "seed": st.sampled_from([None, 0, 7, 2**40]),
        "top_k": st.sampled_from([0, 0, 1, 3, 20]),
        "top_p": st.sampled_from([1.0, 1.0, 0.9, 0.3, 0.05]),
        "min_p": st.sampled_from([0.0, 0.0, 0.05, 0.5]),
    },
    "penalties": {
        "repetition_penalty": st.sampled_from([0.5, 0.9, 1.1, 2.0]),
        "presence_penalty": _floats(-2, 2),
        "frequency_penalty": _floats(-2, 2),
    },
    "bias": {"logit_bias": st.lists(st.tuples(_words, _floats(-100, 100)), max_size=3, unique_by=lambda b: b[0])},
    "allowed": {"allowed_token_ids": st.sets(_words, min_size=12, max_size=30).map(lambda ids: [*ids, *_OF_PLANS])},
    "bad_words": {"bad_words": st.lists(st.lists(_words, min_size=1, max_size=2).map(tuple), max_size=3)},
    "min_tokens": {"min_tokens": st.integers(0, LONGEST)},
    "stop": {
        "stop": st.lists(_stops | st.sampled_from(["w", "3", _ANY_TWO]), min_size=1, max_size=3),
        "include_stop_str_in_output": st.booleans(),
    },
    "stop_tokens": {
        "stop_token_ids": st.lists(st.sampled_from([PROMISE, SYNC, *range(7, 200)]), min_size=1, max_size=90),
        "include_stop_str_in_output": st.booleans(),
    },
    "ignore_eos": {"ignore_eos": st.just(True), "skip_special_tokens": st.booleans()},
    "logprobs": {"logprobs": st.none() | st.integers(0, 5)},
    "prompt_logprobs": {"prompt_logprobs": st.integers(0, 5)},
    "samples": {"n": st.integers(2, 3)},
    "text": {"skip_special_tokens": st.booleans(), "spaces_between_special_tokens": st.booleans()},
    "no_text": {"detokenize": st.just(False)},
    "truncate": {"truncate_prompt_tokens": st.integers(1, 50)},
    "no_hooks": {"hooks": st.just(False)},
    "limits": {
        "max_child_depth": st.none() | st.integers(0, 1),
        "max_children": st.none() | st.just(1),
        "max_tree_tokens": st.none() | st.integers(1, 60),
        "max_tree_sequences": st.none() | st.integers(1, 6),
    },
    "stream_children": {"stream_children": st.just(True)},
    "grammar": {"grammar": grammars()},
}
FEATURES = tuple(_FEATURES)
_FOR_CHILDREN = ("sampled", "penalties", "stop_tokens", "grammar", "bias", "text")


@st.composite
def params(draw: st.DrawFn, features: tuple[str, ...]) -> Params:
    """Parameters with a few of ``features``, which do not contradict one another."""
    fields: dict[str, Any] = {}
    features = tuple(feature for feature in features if feature not in DIALECT.missing)
    kinds = st.lists(st.sampled_from(features), min_size=1, max_size=MAX_FEATURES, unique=True)
    for feature in draw(kinds) if features else []:
        drawn = draw(st.fixed_dictionaries(dict(_FEATURES[feature])))
        fields |= {name: tuple(value) if isinstance(value, list) else value for name, value in drawn.items()}
    return _consistent(Params(**fields))


def _consistent(drawn: Params) -> Params:
    """The parameters without what would be refused, or would leave no token to sample."""
    if drawn.n > 1 and drawn.temperature == 0.0:
        drawn = replace(drawn, temperature=1.0, seed=5)
    if not drawn.detokenize:
        drawn = replace(drawn, stop=())
    if drawn.ignore_eos and not DIALECT.joins_special_tokens:
        # There may be several in a row, whose texts depend on what is before them.
        drawn = replace(drawn, spaces_between_special_tokens=True)
    return _without_rivals(drawn, drawn)


def _without_rivals(drawn: Params, own: Params) -> Params:
    """``drawn`` without what contradicts a grammar in ``own``, or a stop token in ``own`` that a grammar may need."""
    if own.stop_token_ids and not DIALECT.stops_within_grammars:
        drawn = replace(drawn, grammar=None)
    if own.grammar is None:
        return drawn
    drawn = replace(drawn, allowed_token_ids=(), bad_words=(), min_tokens=0, ignore_eos=False)
    return drawn if DIALECT.stops_within_grammars else replace(drawn, stop_token_ids=())


def _together(request: Request, setup: Setup, stream: str) -> Request:
    """The request without what ``setup`` rules out, and with outputs of the kind ``stream``."""
    least = min(request.max_tokens, setup.child_max_tokens or LONGEST)
    drawn = replace(request.params, min_tokens=min(request.params.min_tokens, least), stream=stream)
    if setup.speculation:
        drawn = replace(drawn, **_NOT_WITH_DRAFTS)
    has_prompt_logprobs = DIALECT.has_cached_prompt_logprobs or not setup.prefix_caching
    if not (has_prompt_logprobs and (DIALECT.has_adapted_prompt_logprobs or not setup.max_loras)):
        drawn = replace(drawn, prompt_logprobs=None)
    if setup.of_children.grammar is not None:
        drawn = replace(drawn, min_tokens=0, ignore_eos=False)
    if not DIALECT.joins_special_tokens:
        if setup.of_children.ignore_eos:
            drawn = replace(drawn, spaces_between_special_tokens=True)
        if not setup.of_children.spaces_between_special_tokens:
            drawn = replace(drawn, ignore_eos=False)
    if not DIALECT.become_processors:
        drawn = _without_rivals(drawn, setup.of_children)
    return replace(request, params=drawn, priority=request.priority * (setup.scheduling_policy == "priority"))


@st.composite
def setups(draw: st.DrawFn, features: tuple[str, ...] = _FOR_CHILDREN) -> Setup:
    """Setups of engines; the longest possible sequence fits into the KV cache of each."""
    max_children, prefix_caching = draw(st.integers(1, 8)), draw(st.sampled_from(DIALECT.prefix_caching))
    max_model_len, chunked_prefill = draw(st.integers(100, 320)), draw(st.sampled_from(DIALECT.chunked_prefill))
    # A prefill that is not chunked is to fit into a step.
    least_step = DIALECT.least_chunk[prefix_caching] if chunked_prefill else max_model_len
    child_context: ChildContext = draw(st.sampled_from(["parent", *get_args(ChildContext)]))
    block_on: BlockOn = draw(st.sampled_from(["promise", "promise", "sync", "sync", "never"]))
    words = st.lists(st.integers(0, VOCABULARY - 1), min_size=int(child_context != "parent"), max_size=MAX_PREFIX)
    # What begins with special tokens alone may have nothing before its text.
    prefix = (words | words | st.just([0])).map(tuple)
    return Setup(
        promise_text=draw(st.sampled_from(["", "", "", "", *TEXTS])),
        block_on=block_on,
        join_when=None if block_on == "never" else draw(st.sampled_from([None, None, 1, 2])),
        unjoined_at_end="join" if block_on == "never" else draw(st.sampled_from(["join", "join", "cancel"])),
        names=draw(st.sampled_from(["", "", "Oldest", "Newest"])),
        child_context=child_context,
        prefix_caching=prefix_caching,
        chunked_prefill=chunked_prefill,
        max_model_len=max_model_len,
        spare_blocks=draw(st.integers(0, MAX_SPARE_TOKENS // BLOCK_SIZE)),
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=draw(st.integers(least_step, max(least_step, 96))),
        max_child_depth=draw(st.integers(1, 3)),
        max_children=max_children,
        prefixes=tuple(draw(st.lists(prefix, min_size=1, max_size=min(3, max_children)))),
        replaces=draw(st.sampled_from([False, False, True])),
        separator=draw(st.sampled_from(list(SEPARATORS))),
        merges=draw(st.sampled_from([True, True, True, False])),
        child_max_tokens=draw(st.none() | st.integers(1, LONGEST)),
        async_output=draw(st.sampled_from(DIALECT.async_output)),
        blocked_kv_policy=draw(st.sampled_from(POLICIES)),
        max_loras=draw(st.sampled_from([0, 0, *range(1, NUM_ADAPTERS + 1)])),
        scheduling_policy=draw(st.sampled_from(["fcfs", "fcfs", "priority"])),
        of_children=draw(st.just(PLAIN) | st.just(PLAIN) | params(features)),
        grammar_backend=draw(st.sampled_from(DIALECT.engine_grammar_backends)),
    )


_NOT_WITH_DRAFTS: Mapping[str, Any] = {"min_p": 0.0, "logit_bias": (), "min_tokens": 0}
"""The first two upstream refuses, and of the third it counts no drafts in one of its rows."""


_BY_NGRAMS = {"deepseek_v3", "gemma3_text", "gpt_oss", "exaone4"}
"""Architectures of which upstream takes no draft model: the first one's would predict several tokens itself, and those
of the others have layers of several kinds."""


def _speculating(draw: st.DrawFn, setup: Setup) -> Setup:
    """Drafts change no tree, so the oracle knows nothing of them."""
    choices = DIALECT.speculation if setup.num_stages == 1 else DIALECT.speculation_in_stages
    if setup.architecture in STATES or (setup.max_loras and not DIALECT.has_adapted_drafts):
        choices = ("",)
    speculation = draw(st.sampled_from(choices)) if any(choices) else ""
    if speculation and setup.architecture in _BY_NGRAMS:
        speculation = "ngram"
    if not speculation:
        return setup
    num_drafts = draw(st.integers(1, 4))
    return replace(
        setup,
        speculation=speculation,
        num_drafts=num_drafts,
        # Upstream sets some of a step's tokens aside for drafts.
        max_num_batched_tokens=setup.max_num_batched_tokens + setup.max_num_seqs * (num_drafts + 1),
        of_children=replace(setup.of_children, **_NOT_WITH_DRAFTS),
    )


_NOT_IN_STAGES = {"mamba2", "granitemoehybrid", "lfm2"}
"""Architectures that upstream cannot divide: the first has no stages, the second's cannot be loaded, and the third's
disagree on how KV is laid out."""


@st.composite
def histories(
    draw: st.DrawFn,
    features: tuple[str, ...] = FEATURES,
    architectures: Sequence[str] = ARCHITECTURES,
    stages: Sequence[int] = (1,),
) -> History:
    """All histories, or those whose requests differ from plain ones only in ``features``."""
    setup = draw(setups(tuple(feature for feature in features if feature in _FOR_CHILDREN)))
    request = st.builds(
        Request,
        # A plan tells a request from its children by the length of the prompt.
        prompt_length=_prompt_lengths.filter(lambda length: length > MAX_PREFIX or setup.child_context != "none"),
        max_tokens=st.integers(1, LONGEST),
        plan_seed=st.integers(0, 1000),
        topic=st.integers(0, 2),
        arrival=st.integers(0, 30),
        adapter=st.integers(DIALECT.least_adapter, NUM_ADAPTERS) if setup.max_loras else st.just(0),
        priority=st.integers(-1, 1),
        params=st.just(PLAIN) | params(features),
    )
    streams = st.sampled_from(["CUMULATIVE", "DELTA", "FINAL_ONLY"])
    requests = draw(st.lists(st.tuples(request, st.just(setup), streams), min_size=1, max_size=6))
    drawn = draw(st.lists(st.builds(Abort, step=st.integers(0, 60), place=st.integers(0, 40)), max_size=3).map(tuple))
    architecture = draw(st.sampled_from(architectures))
    if architecture != LLAMA:
        setup = replace(setup, architecture=architecture, max_loras=0)
        requests = [(replace(request, adapter=0), setup, stream) for request, _, stream in requests]
    if architecture in STATES:
        # Without it upstream keeps no states for others.
        setup = replace(setup, chunked_prefill=True)
    # Upstream counts the adapters of a step without those of steps in other stages.
    if len(stages) > 1 and setup.architecture not in _NOT_IN_STAGES and not setup.max_loras:
        setup = replace(setup, num_stages=draw(st.sampled_from(stages)))
    setup = _speculating(draw, setup)
    if setup.architecture in DIALECT.connected and setup.prefix_caching and not setup.max_loras:
        # Upstream's example knows no adapters. Drawing it would change the histories of all seeds.
        setup = replace(setup, connects=setup.spare_blocks % 2 == 1)
    return History(setup, tuple(_together(each, setup, stream) for each, _, stream in requests), drawn)


_REFUSED = {"mistral", "mamba2", "falcon_h1", "granitemoehybrid", "lfm2"}
"""Architectures in which all layers have a window, or one has a state."""

_WITHOUT = {"prompt_logprobs"}
"""Features of requests whose oracle reads more logits than that of injection has."""


@st.composite
def injected(
    draw: st.DrawFn,
    features: Sequence[str] = FEATURES,
    architectures: Sequence[str] = ARCHITECTURES,
) -> History:
    """Those of `histories`, without what cannot be combined with injection."""
    used = tuple(feature for feature in features if feature not in _WITHOUT)
    history = draw(histories(used, [each for each in architectures if each not in _REFUSED]))
    setup = history.setup
    injecting = replace(
        setup,
        block_on="promise" if setup.block_on == "never" else setup.block_on,
        merges=True,
        merges_prefixes=not setup.promise_text and draw(st.sampled_from([False, False, True])),
        position_rule=draw(st.sampled_from(get_args(PositionRule))),
        # A child may have computed its last token, too.
        async_output=False,
        # Other drafts have KV, too.
        speculation="ngram" if setup.speculation else "",
    )
    return replace(history, setup=injecting)

# SPDX-License-Identifier: Apache-2.0
"""The fuzzer on V1 finds trees with joins, and would find a fault of the plug-in in them."""

import itertools
from typing import Any

import pytest
from hypothesis import strategies as st

import sequence_hooks.rules as rules
import sequence_hooks.v1.core.params as params
import sequence_hooks.v1.core.spawn as spawn
import sequence_hooks.v1.core.tree_scheduler as tree_scheduler
import vllm.v1.worker.gpu_model_runner as worker
from mytests.fuzz import Failure, History, fuzz
from mytests.fuzz_draw import histories
from sequence_hooks.merge import merge
from sequence_hooks.v1.core.forks import Forks
from sequence_hooks.v1.core.requests import make_like
from sequence_hooks.v1.core.texts import TokenTexts
from sequence_hooks.v1.frontend.asides import Asides
from vllm.v1.structured_output import StructuredOutputManager

pytestmark = pytest.mark.model

SECONDS = 1_800
"""More than any of these takes on a busy machine; a fault that is not found ends with max_histories."""


@pytest.mark.floats
@sizes(12, 30)
def test_a_short_run_finds_no_fault_in_trees_with_joins(size: int) -> None:
    """The histories are the same on every run, and go on until each kind was among them.

    What the model samples decides what they come to, and processors round differently.
    """
    tally = fuzz(SECONDS, 7, 20 * size, is_enough=lambda seen: seen.histories >= size and not seen.unseen)
    assert tally.unseen == []
    assert tally.sequences > 2 * tally.histories


def _merge_backwards(children: Any, *args: Any) -> Any:
    return merge(children[::-1], *args)


def _has_plain_joins(history: History) -> bool:
    """Whether what children sampled becomes part of their parent's context."""
    setup = history.setup
    return setup.block_on != "never" and setup.child_context == "parent" and setup.merges


def _copy_no_block(*args: Any) -> None:
    pass


def _keep_references(forks: Forks, request_id: str) -> bool:
    return forks._by_child.pop(request_id, None) is not None


def _forget_the_adapter(request: Any, *args: Any) -> Any:
    child = make_like(request, *args)
    child.lora_request = None
    return child


def _share_the_grammar(manager: StructuredOutputManager, request: Any) -> None:
    _init_grammar(manager, request)
    shared = _grammars.setdefault(str(request.structured_output_request.params), request.structured_output_request)
    request.structured_output_request = shared


_grammars: dict[str, Any] = {}
_init_grammar = StructuredOutputManager.grammar_init


def _merge_as_sampled(texts: TokenTexts, token_ids: Any) -> None:
    for token_id in token_ids:
        texts.sample(token_id)


def _draw_a_seed(*parts: object) -> int:
    return next(_counter)


_counter = itertools.count()


def _keep_params(branch: Any) -> Any:
    return branch.sequence.sampling_params


def _forget_earlier_tokens(*args: Any) -> None:
    pass


def _tell_no_delta(asides: Asides, branch: Any) -> None:
    pass


ALL = histories(())
FAULTS = [
    pytest.param(rules, "merge", _merge_backwards, ALL, "should be", id="merged-backwards"),
    pytest.param(worker, "copy_kv_cache_blocks_inplace", _copy_no_block, ALL, "the model has", id="kv-not-copied"),
    pytest.param(Forks, "release", _keep_references, ALL, "KV cache", id="blocks-leaked"),
    pytest.param(spawn, "make_like", _forget_the_adapter, ALL, "the model has", id="childs-adapter"),
    pytest.param(
        *(StructuredOutputManager, "grammar_init", _share_the_grammar, histories(("grammar",)), ""), id="shared-grammar"
    ),
    pytest.param(
        *(TokenTexts, "merge", _merge_as_sampled, histories(("stop",)).filter(_has_plain_joins), ""),
        id="stop-strings-across-a-join",
    ),
    pytest.param(params, "derive_seed", _draw_a_seed, histories(("sampled",)), "and then", id="seeds-at-random"),
    pytest.param(tree_scheduler, "params_after_join", _keep_params, ALL, "r", id="limits-across-a-join"),
    pytest.param(
        *(params, "with_earlier", _forget_earlier_tokens, histories(("penalties",)), ""),
        id="penalties-across-a-join",
    ),
    pytest.param(Asides, "note_delta", _tell_no_delta, histories(("stream_children",)), "deltas", id="deltas-lost"),
]


@pytest.mark.parametrize(("owner", "name", "fault", "among", "message"), FAULTS)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Any, among: st.SearchStrategy[Any], message: str
) -> None:
    """A planted fault of the plug-in, or of what it relies on, is reported."""
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(Failure) as failure:
        fuzz(SECONDS, 4, max_histories=300, shrinks=False, among=among)
    assert message in str(failure.value.__cause__)

# SPDX-License-Identifier: Apache-2.0
"""Faults of the plug-in; the first ones are also planted by the fuzzer's tests, the next by those of the self-check."""

from mytests.fuzz.faults.fault import Edit, Fault, by_itself, model, surgical
from mytests.fuzz.faults.of_fork import fuzzed

CORE = "sequence_hooks.v1.core"
SELFCHECK = "mytests/v1/test_selfcheck.py::test_a_planted_fault_is_reported"
KEPT = "mytests/v1/test_kept_kv.py"

FUZZED = (
    Fault(
        "kv-not-copied",
        (Edit("vllm.v1.worker.utils:copy_kv_cache_blocks_inplace", "", "return"),),
        "A child reads a last block that holds nothing.",
        model("mytests/v1/test_on_a_model.py::test_the_model_joins_what_its_children_return") + fuzzed("kv-not-copied"),
    ),
    Fault(
        "blocks-leaked",
        (Edit(f"{CORE}.forks:ForkedBlocks.release", "", "return self._by_child.pop(request_id, None) is not None"),),
        "The blocks of forks are never free again.",
        surgical("mytests/v1/test_forks.py") + fuzzed("blocks-leaked"),
    ),
    Fault(
        "childs-adapter",
        (Edit(f"{CORE}.requests:make_like", "lora_request=request.lora_request", "lora_request=None"),),
        "A child runs without its parent's adapter.",
        surgical("mytests/rules/test_params.py::TestInherited") + fuzzed("childs-adapter"),
    ),
    Fault(
        "shared-grammar",
        (
            Edit(
                f"{CORE}.children:ChildRequests.make_child",
                "self._grammars.grammar_init(child)",
                "child.structured_output_request = request.structured_output_request or child.structured_output_request"
                "\n        self._grammars.grammar_init(child)",
            ),
        ),
        "Parent and child advance one grammar, and neither gets the tokens that it allows.",
        fuzzed("shared-grammar"),
    ),
    Fault(
        "stop-strings-across-a-join",
        (
            Edit(
                f"{CORE}.stop_strings:StopStringChecker.merge",
                "",
                "for token_id in token_ids:\n    self.sample(token_id)",
            ),
        ),
        "A stop string that a child began stops its parent.",
        surgical("mytests/rules/test_text.py") + fuzzed("stop-strings-across-a-join"),
    ),
    Fault(
        "limits-across-a-join",
        (Edit(f"{CORE}.params:params_after_join", "", "return branch.sequence.sampling_params"),),
        "After a join a sequence may sample as many tokens as at its beginning.",
        surgical("mytests/rules/test_accounting.py", "mytests/v1/test_params.py") + fuzzed("limits-across-a-join"),
    ),
    Fault(
        "penalties-across-a-join",
        (Edit("sequence_hooks.v1.prior_output:with_earlier", "", "return"),),
        "Penalties forget what a sequence has sampled before its join.",
        surgical("mytests/v1/test_prior_output.py") + fuzzed("penalties-across-a-join"),
    ),
    Fault(
        "deltas-lost",
        (Edit("sequence_hooks.v1.frontend.side_outputs:SideOutputs.note_delta", "", "return"),),
        "A caller that streams children is told nothing of them.",
        surgical("mytests/rules/test_child_deltas.py") + fuzzed("deltas-lost"),
    ),
)

CHECKED = (
    Fault(
        "a-wrong-block-is-shared",
        (
            Edit(
                f"{CORE}.forks:ForkedBlocks.of",
                "return None if fork is None else (KVCacheBlocks(fork.blocks), fork.num_tokens)",
                "stray = self._manager.block_pool.blocks[-1]\n"
                "        shared = () if fork is None else tuple([*each[:-1], stray] for each in fork.blocks)\n"
                "        return None if fork is None else (KVCacheBlocks(shared), fork.num_tokens)",
            ),
        ),
        "A child starts with another last block than its parent's.",
        surgical("mytests/v1/test_forks.py") + by_itself("model", f"{SELFCHECK}[a-wrong-block-is-shared]"),
    ),
    Fault(
        "forks-never-released",
        (Edit(f"{CORE}.forks:ForkedBlocks.release", "", "return False"),),
        "Forks are never given back.",
        surgical("mytests/v1/test_forks.py") + by_itself("model", f"{SELFCHECK}[forks-never-released]"),
    ),
)

KEPT_KV = (
    Fault(
        "found-at-other-positions",
        (Edit(f"{CORE}.kv_groups:cut_hit", "", "return hit"),),
        "A sequence whose results overlap finds KV of plain text in the prefix cache.",
        surgical("mytests/rules/test_injection.py::TestPrefixCache::test_overlapping_results_do_not_find_plain_text"),
    ),
)

BUDGETS = (
    Fault(
        "a-budget-without-a-tree",
        (Edit("sequence_hooks.tree.driver:ForkJoinDriver.sampled", "match is None and not uses_up", "match is None"),),
        "A request that its budget ends before it has a tree does not say so.",
        surgical("mytests/rules/test_tree_budget.py::TestBound::test_a_request_without_a_tree_has_it_too"),
    ),
)

PLUGIN = (*FUZZED, *CHECKED, *KEPT_KV, *BUDGETS)

# SPDX-License-Identifier: Apache-2.0
"""Faults that the fuzzer's tests and those of the self-check plant, to show that each oracle sees what it is for."""

from dataclasses import dataclass

from mytests.harness.installed import IS_V1


@dataclass(frozen=True)
class Edit:
    """A change of one function's source; no file is touched."""

    place: str
    """The function, by its module and its qualified name: ``sequence_hooks.tree.rules:join``."""

    old: str
    """What is replaced, which the function has exactly once; the whole body if empty."""

    new: str


_ON_BOTH = {
    # A parent gets its children's results in the wrong order.
    "merged-backwards": Edit(
        "sequence_hooks.tree.rules:join", "merge(finished(children), ", "merge(finished(children)[::-1], "
    ),
    # A tree samples more than its budget.
    "a-budget-is-exceeded": Edit("sequence_hooks.tree.rules:is_dropped", "", "return False"),
    # A seeded request gets another tree each time.
    "seeds-at-random": Edit(
        "sequence_hooks.tree.child_params:derive_seed", "", "import secrets\nreturn secrets.randbits(62)"
    ),
    # Where results overlap, what a join inserts last follows the last result, and not the longest one.
    "joined-after-the-last-child": Edit("sequence_hooks.tree.positions:overlapping", "position = furthest\n", "pass\n"),
}

_ON_THE_FORK = {
    # A child reads a last block that holds nothing.
    "kv-not-copied": Edit("vllm.core.shared_blocks:last_copy_into_each", "", "return []"),
    # The blocks of aborted sequences are never free again.
    "blocks-leaked": Edit(
        "vllm.core.hook_scheduler:HookScheduler.free_seq",
        "branch = branch_of_seq(seq)",
        "branch = branch_of_seq(seq)\n        if seq.status.name == 'FINISHED_ABORTED':\n            return",
    ),
    # A child runs without its parent's adapter.
    "childs-adapter": Edit(
        "vllm.engine.children:ChildSequences.make_child",
        "return V0Sequence(child_group)",
        "child_group.lora_request = child_seq.lora_request = None\n        return V0Sequence(child_group)",
    ),
    # Penalties count tokens that a sequence has not sampled.
    "merged-tokens-penalized": Edit(
        "vllm.core.sequence_data:MergedSequenceData.output_token_ids_array", "", "return self._output_token_ids"
    ),
    # Two sequences advance one grammar, and neither gets the tokens that it allows.
    "shared-grammar": Edit(
        "vllm.model_executor.guided_decoding.xgrammar_decoding:XGrammarLogitsProcessor.clone", "", "return self"
    ),
    # A stop string that a child began stops its parent, and limits count merged tokens.
    "stop-strings-across-a-join": Edit(
        "vllm.engine.output_processor.hook_stop_checker:HookStopChecker.maybe_stop_sequence",
        "",
        "StopChecker.maybe_stop_sequence(self, seq, new_char_count, sampling_params, lora_req)",
    ),
}

_CORE = "sequence_hooks.v1.core"
_ON_THE_PLUGIN = {
    # A child reads a last block that holds nothing.
    "kv-not-copied": Edit("vllm.v1.worker.utils:copy_kv_cache_blocks_inplace", "", "return"),
    # Children of a hybrid model read what the last owner of a block has left in it.
    "a-block-is-copied-in-part": Edit("sequence_hooks.v1.worker.block_copies:attach", "", "return"),
    # A child starts with another last block than its parent's.
    "a-wrong-block-is-shared": Edit(
        f"{_CORE}.forks:ForkedBlocks.of",
        "return None if fork is None else (KVCacheBlocks(fork.blocks), fork.num_tokens)",
        "stray = self._manager.block_pool.blocks[-1]\n"
        "        shared = () if fork is None else tuple([*each[:-1], stray] for each in fork.blocks)\n"
        "        return None if fork is None else (KVCacheBlocks(shared), fork.num_tokens)",
    ),
    # The blocks of forks are never free again.
    "blocks-leaked": Edit(
        f"{_CORE}.forks:ForkedBlocks.release", "", "return self._by_child.pop(request_id, None) is not None"
    ),
    # Forks are never given back.
    "forks-never-released": Edit(f"{_CORE}.forks:ForkedBlocks.release", "", "return False"),
    # A child runs without its parent's adapter.
    "childs-adapter": Edit(f"{_CORE}.requests:make_like", "lora_request=request.lora_request", "lora_request=None"),
    # Parent and child advance one grammar, and neither gets the tokens that it allows.
    "shared-grammar": Edit(
        f"{_CORE}.children:ChildRequests.make_child",
        "self._grammars.grammar_init(child)",
        "child.structured_output_request = request.structured_output_request or child.structured_output_request"
        "\n        self._grammars.grammar_init(child)",
    ),
    # A stop string that a child began stops its parent.
    "stop-strings-across-a-join": Edit(
        f"{_CORE}.stop_strings:StopStringChecker.merge", "", "for token_id in token_ids:\n    self.sample(token_id)"
    ),
    # After a join a sequence may sample as many tokens as at its beginning.
    "limits-across-a-join": Edit(f"{_CORE}.params:params_after_join", "", "return branch.sequence.sampling_params"),
    # Penalties forget what a sequence has sampled before its join.
    "penalties-across-a-join": Edit("sequence_hooks.v1.prior_output:with_earlier", "", "return"),
    # A caller that streams children is told nothing of them.
    "deltas-lost": Edit("sequence_hooks.v1.frontend.side_outputs:SideOutputs.note_delta", "", "return"),
}

FAULTS = _ON_BOTH | (_ON_THE_PLUGIN if IS_V1 else _ON_THE_FORK)
"""Those of the engine that is installed, by name."""

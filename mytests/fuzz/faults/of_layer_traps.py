# SPDX-License-Identifier: Apache-2.0
"""The traps of ``docs/internals/plugin.md`` that concern layers with windows or states: each fault undoes a remedy."""

from mytests.fuzz.faults.fault import Edit, by_itself, surgical, undoing

FORKS = "sequence_hooks.v1.core.forks:ForkedBlocks"
GROUPS = "sequence_hooks.v1.core.kv_groups"
SCHEDULER = "sequence_hooks.v1.core.scheduler:HookScheduler"
RELEASE = "sequence_hooks.v1.releases.vllm_0_32:ReleaseScheduler"
TESTS = "mytests/v1/test_forks.py"
STATES = f"{TESTS}::TestStates"

LAYER_TRAPS = (
    undoing(
        "a sequence gives up the blocks before its windows",
        "all-blocks-of-a-window-are-shared",
        "Blocks that nobody will read are kept from others.",
        (Edit(f"{GROUPS}:blocks_after", "manager.get_num_skipped_tokens(num_tokens) // size", "0"),),
        surgical(f"{TESTS}::test_of_layers_with_a_window_only_what_is_seen_is_shared"),
    ),
    undoing(
        "a state is overwritten in place by each token",
        "a-state-is-not-kept",
        "A child that waits goes on from a state that its parent has overwritten.",
        (Edit(f"{FORKS}.keep_states", "", "return"),),
        surgical(f"{STATES}::test_children_that_wait_share_one_copy"),
    ),
    undoing(
        "a step in flight has put the last token",
        "a-state-gets-a-token-twice",
        "A parent computes its promise again, which its state has already.",
        (Edit(f"{SCHEDULER}._handle_stopped_request", "if not self.kv.forks.has_states:", "if True:"),),
        surgical(f"{STATES}::test_a_parent_goes_on_from_its_state"),
    ),
    undoing(
        "the first model runner remembers which block has a request's state",
        "a-state-is-looked-for-where-it-was",
        "A parent whose KV was evicted goes on from another one's state, or from a block that it does not have.",
        (Edit("sequence_hooks.v1.worker.states:forget", "", "return"),),
        surgical(f"{STATES}::test_an_evicted_parent_goes_on_from_the_state_that_is_found"),
    ),
    undoing(
        "full blocks that a request begins with",
        "a-forks-blocks-are-not-in-the-cache",
        "The engine ends where a parent fills a block that its child has entered in the prefix cache.",
        (Edit(f"{FORKS}.add", "if self.has_states:", "if False:"),),
        surgical(f"{STATES}::test_a_state_that_fills_its_block_may_be_found_by_others"),
    ),
    undoing(
        "a state that the prefix cache has found",
        "kv-is-given-up-for-a-state-of-this-step",
        "KV is given up for a request that gets no slots in this step, whatever is free.",
        (
            Edit(
                "sequence_hooks.v1.core.kv_manager:TreeKVManager.allocate_slots",
                "blocks is None and waits_for_state",
                "False and waits_for_state",
            ),
        ),
        surgical(f"{STATES}::test_nobody_gives_up_kv_for_a_state_that_is_not_written_yet"),
    ),
    undoing(
        "one view of each address is copied with a block",
        "a-block-is-copied-in-part",
        "Children of a hybrid model read what the last owner of a block has left in it.",
        (Edit("sequence_hooks.v1.worker.block_copies:attach", "", "return"),),
        surgical("mytests/v1/test_block_copies.py", STATES),
        by_itself("model", "mytests/v1/test_selfcheck.py::test_a_planted_fault_is_reported[a-block-is-copied-in-part]"),
        by_itself("fuzz", "mytests/fuzz/test_fuzz.py::test_a_planted_fault_is_found[a-block-is-copied-in-part]"),
    ),
    undoing(
        "a step may run past the block in which a prefix",
        "a-step-passes-the-end-of-a-found-prefix",
        "Others find the state after a part of a block as the one after all of it.",
        (
            Edit(
                f"{RELEASE}._mamba_block_aligned_split",
                "if start % size",
                "if 0",
            ),
        ),
        surgical(f"{TESTS}::test_a_step_ends_where_the_block_ends_in_which_a_found_prefix_has_ended"),
    ),
)

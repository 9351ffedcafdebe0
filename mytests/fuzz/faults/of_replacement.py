# SPDX-License-Identifier: Apache-2.0
"""Faults of joins that replace the end of a context."""

from mytests.fuzz.faults.fault import Edit, Engine, Fault, surgical

BOTH: tuple[Engine, ...] = ("fork", "plugin")
BRANCH = "sequence_hooks.tree.branch:Branch"
TESTS = "mytests/rules/test_replacement.py"

REPLACED = (
    Fault(
        "replaced-kv-stays",
        (
            Edit(
                "sequence_hooks.tree.driver:ForkJoinDriver._cut_kv",
                "if not merge.num_replaced and num_computed < merge.num_context:",
                "if True:",
            ),
        ),
        "What comes in the place of something is taken for computed, with the KV of what was there.",
        surgical(f"{TESTS}::TestKV"),
        BOTH,
    ),
    Fault(
        "replaced-tokens-count-as-context",
        (
            Edit(
                f"{BRANCH}.replace_last",
                "self.num_replaced += num_tokens",
                "pass",
            ),
        ),
        "A context is longer than the model sees it, and children stand at wrong positions.",
        surgical(f"{TESTS}::TestOutput"),
        BOTH,
    ),
    Fault(
        "a-sequence-that-replaces-never-ends",
        (Edit("sequence_hooks.tree.rules:has_room", "or has_sampled_all", ""),),
        "A sequence whose context is cut again and again samples for ever.",
        surgical(f"{TESTS}::TestAccounting::test_a_request_without_max_tokens_ends"),
        BOTH,
    ),
    Fault(
        "replaced-blocks-are-written-in-place",
        (
            Edit(
                "vllm.core.shared_blocks:SharedBlocks.cut",
                "min(num_tokens, table.num_full_slots) // size",
                "-(-min(num_tokens, table.num_full_slots) // size)",
            ),
        ),
        "A block that is kept in part is taken for a full one, with KV of tokens that are gone.",
        surgical(f"{TESTS}::TestKV"),
        ("fork",),
    ),
    Fault(
        "replaced-tokens-are-hashed",
        (
            Edit(
                "sequence_hooks.v1.core.requests:cut_context",
                "request.block_hashes.clear()",
                "pass",
            ),
        ),
        "The prefix cache has blocks under the hashes of tokens that were replaced.",
        surgical(f"{TESTS}::TestKV"),
        ("plugin",),
    ),
)

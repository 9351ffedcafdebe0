# SPDX-License-Identifier: Apache-2.0
"""The traps of ``docs/internals/plugin.md`` that concern KV: each fault undoes a remedy."""

from mytests.fuzz.faults.fault import Edit, model, surgical, undoing

CORE = "sequence_hooks.v1.core"
SCHEDULER = f"{CORE}.scheduler:HookScheduler"
KV_MANAGER = f"{CORE}.kv_manager:TreeKVManager"
INJECTION = f"{CORE}.glue:Injection"
CORNERS = "mytests/v1/test_corners.py"
CHECKS = "mytests/v1/test_checks.py"
IMAGES = "mytests/v1/test_images.py"

KV_TRAPS = (
    # In these two an engine with a model would spin without an end.
    undoing(
        "KV of a request that does not run",
        "nobody-gives-up-kv",
        "Where BLOCKED sequences hold all KV, no sequence goes on.",
        (Edit(f"{KV_MANAGER}.allocate_slots", "while blocks is None and", "while False and"),),
        surgical(f"{CORNERS}::test_a_joined_sequence_gives_up_kv_for_another_one"),
    ),
    undoing(
        "what lacks room is preempted last of all for itself",
        "preempted-for-itself",
        "A sequence that runs alone begins again and comes as far, for ever, while others wait with KV.",
        (Edit(f"{KV_MANAGER}._evict_for", "all(each is request for each in running)", "not running"),),
        surgical(f"{CORNERS}::test_one_that_runs_alone_is_not_preempted_for_itself"),
    ),
    undoing(
        "with asynchronous scheduling a token may arrive",
        "a-preempted-parent-is-shared",
        "A child shares blocks that its parent does not have any more.",
        (Edit(f"{CORE}.forks:ForkedBlocks.add", "if num_tokens > 0 else None", "if num_shared > 0 else None"),),
        surgical(f"{CORNERS}::test_a_promise_of_a_sequence_that_was_preempted_meanwhile"),
    ),
    undoing(
        "a preempted request computes its context anew",
        "no-prefix-cache-is-allowed",
        "Without a prefix cache no child shares a block.",
        (Edit("sequence_hooks.v1.startup:check_engine", "not config.cache_config.enable_prefix_caching", "False"),),
        surgical(f"{CHECKS}::test_what_cannot_work_is_refused"),
    ),
    undoing(
        "a preempted request computes its context anew",
        "other-layers-are-allowed",
        "Children share blocks of layers that have freed or overwritten them.",
        (Edit(f"{CORE}.kv_groups:check_kv_groups", "", "return"),),
        surgical(f"{CHECKS}::test_layers_that_cannot_be_shared_or_injected_are_refused"),
    ),
    undoing(
        "a reset of the cache",
        "kv-survives-a-reset",
        "After new weights, BLOCKED sequences and forks go on with KV of the old ones.",
        (Edit(f"{SCHEDULER}.reset_prefix_cache", "if reset_running_requests:", "if False:"),),
        surgical(f"{CORNERS}::test_no_kv_survives_a_reset_of_upstreams_cache"),
    ),
    undoing(
        "full blocks of every request are entered",
        "injected-blocks-are-found",
        "Another request finds a block in the prefix cache that its tokens did not compute.",
        (Edit(f"{INJECTION}._bypass_prefix_cache", "", "return"),),
        surgical("mytests/rules/test_injection.py::TestPrefixCache::test_an_injected_block_is_not_in_it"),
    ),
    undoing(
        "the second model runner's sampler reads",
        "the-sampler-reads-shifted-positions",
        "Where results overlap, a sequence samples less or more than min_tokens before its end.",
        (Edit("sequence_hooks.v1.worker.injector:Injector.shift_back", "", "pass"),),
        surgical("mytests/v1/test_injector.py::TestPositions", "mytests/rules/test_injection.py::TestPositions"),
    ),
    undoing(
        "a schedule that is made of another one",
        "nobody-misses-a-step",
        "A sequence reads KV that was never copied for it.",
        (Edit("sequence_hooks.v1.worker.injector:Injector._check", "", "pass"),),
        surgical("mytests/v1/test_injector.py::TestWay", "mytests/v1/test_injector.py::TestSteps"),
    ),
    undoing(
        "part of a prompt may be scheduled",
        "glue-does-not-wait-for-glue",
        "What comes after a run of glue is computed before all of the run has KV.",
        (
            Edit(f"{INJECTION}.must_wait", " or each in inflight_prefills", ""),
            Edit(f"{INJECTION}.after_parts", "", "return []"),
        ),
        surgical("mytests/v1/test_injection.py::TestGlueRequests::test_a_run_may_be_longer_than_a_part_of_a_prompt"),
    ),
    undoing(
        "nobody is admitted after a waiting request",
        "glue-keeps-others-out",
        "While glue of one sequence is computed in parts, no other request begins.",
        (Edit(f"{SCHEDULER}.schedule", "self._injection.after_parts()", "()"),),
        surgical(
            "mytests/v1/test_injection.py::TestGlueRequests::test_others_are_admitted_while_it_is_computed_in_parts"
        ),
    ),
    undoing(
        "blocks that two requests hold count as shared",
        "glue-holds-references",
        "An owner of glue cannot give up its KV, because its glue counts as another owner.",
        (
            Edit(
                f"{INJECTION}._make_glue",
                "self.glue[glue.request_id] =",
                "self._manager.block_pool.touch(manager.req_to_blocks[glue.request_id])\n"
                "        self.glue[glue.request_id] =",
            ),
            Edit(
                f"{INJECTION}._forget",
                "del manager.req_to_blocks[glue.request.request_id]",
                "self._manager.block_pool.free_blocks(manager.req_to_blocks.pop(glue.request.request_id))",
            ),
        ),
        surgical(
            "mytests/v1/test_injection.py::TestGlueRequests::test_it_holds_no_references",
            "mytests/v1/test_walks.py::test_aborts_at_any_time_leave_nothing",
        ),
    ),
    undoing(
        "after an image tokens have other positions",
        "glue-without-its-image",
        "Between injected results tokens are computed at positions as if there were no image.",
        (Edit(f"{INJECTION}._make_glue", "owner.mm_features if self._has_media_positions else []", "[]"),),
        model(f"{IMAGES}::test_kv_is_injected_after_an_image"),
    ),
    undoing(
        "in some models the tokens of a prompt see those after them",
        "models-may-read-both-ways",
        "After a join a parent's tokens see those that were merged after them.",
        (Edit(f"{CORE}.kv_groups:check_kv_groups", 'getattr(spec, "non_causal", False)', "False"),),
        surgical(f"{CHECKS}::test_layers_that_cannot_be_shared_or_injected_are_refused"),
    ),
)

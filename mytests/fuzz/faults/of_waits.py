# SPDX-License-Identifier: Apache-2.0
"""Faults of who runs and who is awaited: limits on running children, guards, names, first results, and ends."""

from mytests.fuzz.faults.fault import Edit, Engine, Fault, surgical

BOTH: tuple[Engine, ...] = ("fork", "plugin")
DRIVER = "sequence_hooks.tree.driver:ForkJoinDriver"
RUNNING = "mytests/rules/test_fairness.py::TestRunningChildren"
NAMED = "mytests/rules/test_named_waits.py"
FIRST = "mytests/rules/test_first_results.py"
UNJOINED = "mytests/rules/test_unjoined_at_end.py"

WAITS = (
    Fault(
        "running-children-without-limit",
        (Edit("sequence_hooks.admission.share:Share.has_child_room", "", "return True"),),
        "All children of a tree are admitted at once, whatever its limit.",
        surgical(RUNNING),
        BOTH,
    ),
    Fault(
        "running-children-never-counted-down",
        (
            Edit(
                "sequence_hooks.admission.order:AdmissionOrder.stop",
                "share.num_running_children -= share.running.pop(item)",
                "share.running.pop(item)",
            ),
        ),
        "Children that wait for a place never get one.",
        surgical(RUNNING),
        BOTH,
    ),
    Fault(
        "all-trees-go-on-where-kv-is-tight",
        (Edit("sequence_hooks.admission.order:AdmissionOrder.go_by_age", "", "return"),),
        "Trees that begin together hold what the others lack, and compute again what they give up.",
        surgical("mytests/v1/test_tight_kv.py::test_trees_alone_take_hardly_more_steps"),
    ),
    Fault(
        "no-tree-is-overdue",
        (Edit("sequence_hooks.admission.oldest:OldestFirst.begin_step", "self._patience.is_over(first)", "False"),),
        "A small tree waits until older ones have ended.",
        surgical("mytests/v1/test_tight_kv.py::test_a_small_tree_is_served_beside_one_that_explodes"),
    ),
    Fault(
        "forks-go-before-requests-of-others",
        (
            Edit(
                "sequence_hooks.v1.core.kv_manager:TreeKVManager._evict_for",
                "is_last_resort or is_for_others",
                "is_last_resort",
            ),
        ),
        "An ordinary request waits, or is preempted, for KV of children which have yet to begin.",
        surgical("mytests/rules/test_fairness.py::TestNewRequests::test_one_takes_kv_that_others_only_hold"),
    ),
    Fault(
        "guard-cuts-what-stands-before",
        (Edit("sequence_hooks.protocols.guard:Guard.on_token", "start.text_before + self._right", "self._right"),),
        "Text that shares a token with what a guard puts right is lost.",
        surgical("mytests/core/test_guard.py::TestGuard"),
        ("fork",),
    ),
    Fault(
        "any-number-may-be-named",
        (
            Edit(
                "sequence_hooks.tree.rules:_forbidding",
                "if actions.wait_for is not None and",
                "if actions.wait_for is None and",
            ),
        ),
        "A sequence waits for a child that it does not have.",
        surgical(f"{NAMED}::TestRefusals"),
        BOTH,
    ),
    Fault(
        "named-children-are-forgotten-in-a-callers-wait",
        (Edit("sequence_hooks.tree.rules:_waits_for", 'Wait("caller", numbers, ', 'Wait("caller", None, '),),
        "Who waits for a caller too waits for all of its children.",
        surgical(f"{NAMED}::TestCallers"),
        BOTH,
    ),
    Fault(
        "siblings-of-a-named-child-are-cancelled",
        (Edit(f"{DRIVER}._join", "branch.awaited if child", "branch.unjoined if child"),),
        "Children that a wait has not named are cancelled with its join.",
        surgical(f"{NAMED}::TestWaits", f"{FIRST}::TestFirst::test_of_named_children"),
        BOTH,
    ),
    Fault(
        "late-results-first",
        (Edit("sequence_hooks.tree.rules:joined", "sorted(first, key=lambda child: child.number)", "first[::-1]"),),
        "The first results are not joined in spawn order.",
        surgical(f"{FIRST}::TestFirst"),
        BOTH,
    ),
    Fault(
        "cancelled-is-failed",
        (Edit(f"{DRIVER}.abort", "if branch in self._cancelling:", "if False:"),),
        "A child that its parent has gone on without counts as aborted by a caller.",
        surgical(f"{FIRST}::TestFirst", f"{UNJOINED}::TestEnds"),
        BOTH,
    ),
    Fault(
        "cancelled-children-are-told-at-the-end",
        (
            Edit(
                "vllm.core.hook_scheduler:HookScheduler.cancel_sequences",
                "self._finished_at_join +=",
                "_ =",
            ),
        ),
        "A stream hears of a cancelled child when its request ends.",
        surgical(f"{FIRST}::TestAccounting"),
        ("fork",),
    ),
    Fault(
        "a-configured-number-holds-for-no-wait",
        (Edit(f"{DRIVER}._with_default", "wait if wait.join_when is not None else", "wait if True else"),),
        "A sync waits for all of its children, whatever is configured.",
        surgical(f"{FIRST}::TestFirst"),
        BOTH,
    ),
    Fault(
        "an-end-waits-for-all",
        (
            Edit(
                "sequence_hooks.config.special_kwargs:SpecialKwargs.join_when_at_end",
                "",
                "return self.join_when",
            ),
        ),
        "A sequence that is to end without its children waits for them.",
        surgical(f"{UNJOINED}::TestEnds"),
        BOTH,
    ),
    Fault(
        "cancelled-after-detached-ones",
        (Edit("sequence_hooks.tree.rules:unneeded", "", "return []"),),
        "Children that nobody needs run on as long as detached ones are awaited.",
        surgical(f"{UNJOINED}::TestTrees::test_detached_ones_are_awaited_as_ever"),
        BOTH,
    ),
    Fault(
        "a-budget-joins-whom-nobody-awaits",
        (
            Edit(
                "sequence_hooks.tree.manager:DependencyManager.stop_waiting",
                "branch.wait.numbers if wait.join_when == 0 else None",
                "None",
            ),
        ),
        "When a budget is used up, children are joined that their parent has not named and would cancel.",
        surgical(f"{UNJOINED}::TestTrees::test_a_budget_cancels_what_nobody_waits_for"),
        BOTH,
    ),
)

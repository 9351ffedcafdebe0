# SPDX-License-Identifier: Apache-2.0
"""Faults of the fork, and of what both engines share; the first ones are also planted by the fuzzer's tests."""

from mytests.fuzz.faults.fault import Edit, Engine, Fault, Net, by_itself, model, surgical

ONLY: tuple[Engine, ...] = ("fork",)
BOTH: tuple[Engine, ...] = ("fork", "plugin")
FUZZ = "mytests/fuzz/test_fuzz.py::test_a_planted_fault_is_found"


def fuzzed(name: str) -> tuple[Net, ...]:
    """The fuzzer, on the engines of the fault."""
    return by_itself("fuzz", f"{FUZZ}[{name}]")


FORK = (
    Fault(
        "merged-backwards",
        (
            Edit(
                "sequence_hooks.tree.rules:join",
                "merge(finished(children), ",
                "merge(finished(children)[::-1], ",
            ),
        ),
        "A parent gets its children's results in the wrong order.",
        surgical(
            "mytests/rules/test_contexts.py::TestContexts::test_each_child_of_a_handler_has_its_own",
            "mytests/core/test_rules.py::TestJoin::test_results_stand_in_spawn_order",
        )
        + fuzzed("merged-backwards"),
        BOTH,
    ),
    Fault(
        "seeds-at-random",
        (Edit("sequence_hooks.tree.child_params:derive_seed", "", "import secrets\nreturn secrets.randbits(62)"),),
        "A seeded request gets another tree each time.",
        surgical("mytests/rules/test_params.py::TestSeeds") + fuzzed("seeds-at-random"),
        BOTH,
    ),
    Fault(
        "kv-not-copied",
        (Edit("vllm.core.shared_blocks:last_copy_into_each", "", "return []"),),
        "A child reads a last block that holds nothing.",
        surgical("mytests/v0/test_shared_blocks.py", "mytests/rules/test_forks.py")
        + model("mytests/v0/test_end_to_end.py::test_every_sampled_token_is_the_oracles")
        + fuzzed("kv-not-copied"),
        ONLY,
    ),
    Fault(
        "blocks-leaked",
        (
            Edit(
                "vllm.core.hook_scheduler:HookScheduler.free_seq",
                "branch = branch_of_seq(seq)",
                "branch = branch_of_seq(seq)\n        if seq.status.name == 'FINISHED_ABORTED':\n            return",
            ),
        ),
        "The blocks of aborted sequences are never free again.",
        surgical("mytests/rules/test_edge_cases.py::TestAborts") + fuzzed("blocks-leaked"),
        ONLY,
    ),
    Fault(
        "childs-adapter",
        (
            Edit(
                "vllm.engine.children:ChildSequences.make_child",
                "return V0Sequence(child_group)",
                "child_group.lora_request = child_seq.lora_request = None\n        return V0Sequence(child_group)",
            ),
        ),
        "A child runs without its parent's adapter.",
        surgical("mytests/rules/test_params.py::TestInherited") + fuzzed("childs-adapter"),
        ONLY,
    ),
    Fault(
        "kept-kv-cached",
        (
            Edit(
                "vllm.core.kept:KeptKV.release",
                ", self._num_alike.pop(seq.seq_id))",
                ")\n            del self._num_alike[seq.seq_id]",
            ),
        ),
        "Injected KV of a child that is freed after its join is found in the prefix cache.",
        surgical("mytests/rules/test_injection.py::TestPrefixCache"),
        ONLY,
    ),
    Fault(
        "merged-tokens-penalized",
        (
            Edit(
                "vllm.core.sequence_data:MergedSequenceData.output_token_ids_array", "", "return self._output_token_ids"
            ),
        ),
        "Penalties count tokens that a sequence has not sampled.",
        surgical("mytests/v0/test_sampling.py") + fuzzed("merged-tokens-penalized"),
        ONLY,
    ),
    Fault(
        "shared-grammar",
        (
            Edit(
                "vllm.model_executor.guided_decoding.xgrammar_decoding:XGrammarLogitsProcessor.clone", "", "return self"
            ),
        ),
        "Two sequences advance one grammar, and neither gets the tokens that it allows.",
        fuzzed("shared-grammar"),
        ONLY,
    ),
    Fault(
        "stop-strings-across-a-join",
        (
            Edit(
                "vllm.engine.output_processor.hook_stop_checker:HookStopChecker.maybe_stop_sequence",
                "",
                "StopChecker.maybe_stop_sequence(self, seq, new_char_count, sampling_params, lora_req)",
            ),
        ),
        "A stop string that a child began stops its parent, and limits count merged tokens.",
        surgical("mytests/rules/test_text.py", "mytests/rules/test_accounting.py")
        + fuzzed("stop-strings-across-a-join"),
        ONLY,
    ),
    Fault(
        "joined-after-the-last-child",
        (Edit("sequence_hooks.tree.positions:overlapping", "position = furthest\n", "pass\n"),),
        "Where results overlap, what a join inserts last follows the last result, and not the longest one.",
        surgical(
            "mytests/core/test_positions.py::TestOverlapping::test_it_is_as_its_picture",
            "mytests/rules/test_injection.py::TestPositions::test_what_a_join_inserts_last_follows_the_longest_result",
        ),
        BOTH,
    ),
    Fault(
        "recomputed-at-plain-positions",
        (
            Edit(
                "sequence_hooks.tree.branch:Branch.discard_injected",
                "self.injected = None",
                "self.injected, self.positions = None, PLAIN",
            ),
        ),
        "A sequence that has lost injected KV is computed at other positions than its notation has.",
        surgical(
            "mytests/core/test_positions.py::TestTrees",
            "mytests/rules/test_injection.py::TestPositions::test_a_parent_that_is_recomputed_keeps_its_own",
        ),
        BOTH,
    ),
    Fault(
        "kept-detached",
        (Edit("sequence_hooks.tree.rules:keeps_kv", " or spec.is_detached", ""),),
        "KV of detached children is kept, which nobody will copy.",
        surgical(
            "mytests/core/test_rules.py::TestKeptKV",
            "mytests/rules/test_injection.py::TestEnds::test_nothing_is_kept_of_a_detached_child",
        ),
        BOTH,
    ),
    Fault(
        "kept-of-another-context",
        (Edit("sequence_hooks.tree.rules:keeps_kv", "not child.sees_parent or ", ""),),
        "KV of children that have begun without all of their parent's context is injected into it.",
        surgical("mytests/core/test_rules.py::TestKeptKV::test_not_that_of_a_child_whose_parent_could_not_use_it"),
        ("fork",),
    ),
    Fault(
        "kept-of-an-unjoined-sibling",
        (Edit("sequence_hooks.tree.rules:needs_kv", "child.is_unjoined and ", ""),),
        "KV of joined children is kept until their parent has ended.",
        surgical(
            "mytests/core/test_rules.py::TestKeptKV::test_until_its_parent_needs_it_no_longer",
            "mytests/rules/test_named_waits.py::TestKV",
        ),
        BOTH,
    ),
    Fault(
        "kept-by-nobody-else",
        (
            Edit(
                "sequence_hooks.tree.rules:is_awaited",
                "parent.wait.numbers is None or child.number in parent.wait.numbers",
                "True",
            ),
        ),
        "A parent that has given up its KV prefills the results of those, too, that it has not waited for.",
        surgical("mytests/rules/test_named_waits.py::TestKV::test_a_parent_that_loses_its_kv_prefills_what_is_named"),
        BOTH,
    ),
    Fault(
        "joined-with-siblings",
        (
            Edit(
                "sequence_hooks.tree.branch:Branch.awaited",
                "named is None or child.number in named",
                "True",
            ),
        ),
        "A wait by number is a wait for all children.",
        surgical("mytests/rules/test_named_waits.py::TestWaits", "mytests/core/test_rules.py::TestWaits"),
        BOTH,
    ),
    Fault(
        "nobody-cancelled",
        (Edit("sequence_hooks.tree.driver:ForkJoinDriver._cancel", "if unfinished:", "if not unfinished:"),),
        "Children whose parents have gone on without them run on.",
        surgical("mytests/rules/test_first_results.py::TestFirst"),
        BOTH,
    ),
    Fault(
        "failed-is-a-result",
        (Edit("sequence_hooks.tree.rules:joined", "child.has_failed", "child.number"),),
        "A child that has failed counts as one of the first results.",
        surgical("mytests/core/test_rules.py::TestWaits", "mytests/rules/test_first_results.py::TestFailures"),
        BOTH,
    ),
    Fault(
        "kept-failed",
        (
            Edit(
                "sequence_hooks.tree.rules:keeps_kv",
                'child.sequence.outcome in ("stopped", "length")',
                "child.sequence.outcome is not None",
            ),
        ),
        "KV of aborted children is kept, and of those that ended with an error, which nobody will copy.",
        surgical(
            "mytests/core/test_rules.py::TestKeptKV",
            "mytests/rules/test_injection.py::TestEnds::test_nothing_is_kept_of_an_aborted_child",
            "mytests/v1/test_kept_kv.py::test_nothing_is_kept_of_a_child_that_ends_with_an_error",
        ),
        BOTH,
    ),
    Fault(
        "refused-silently",
        (Edit("sequence_hooks.tree.driver:ForkJoinDriver._tell_refusal", "", "return"),),
        "A promise that is refused is text of which neither its caller nor the metrics know.",
        surgical("mytests/rules/test_fan_out.py", "mytests/rules/test_handler_faults.py::TestFaults"),
        BOTH,
    ),
    Fault(
        "a-space-before-texts",
        (Edit("sequence_hooks.text.continuing:continuing_ids", "", "return _encode(text, tokenizer)"),),
        "Tokenizers of SentencePiece's kind put a space before each text that is inserted.",
        surgical(
            "mytests/core/test_continuing.py",
            "mytests/rules/test_fan_out.py::TestFanOut::test_no_space_is_put_where_texts_are_inserted",
        ),
        BOTH,
    ),
    Fault(
        "swapped-children-do-not-count",
        (
            Edit(
                "vllm.core.admitting_scheduler:AdmittingScheduler._schedule_swapped",
                "self._admission.note_started(each.seq_group for each in admitted)",
                "pass",
            ),
        ),
        "More children of a tree run than may, where one comes back from swap space as another one begins.",
        surgical("mytests/v0/test_priority.py::TestSwapped::test_no_more_children_come_back_than_may_run"),
        ("fork",),
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""The other traps of ``docs/internals/plugin.md``: each fault undoes a remedy, as far as that can be done by itself."""

from mytests.fuzz.faults.fault import Edit, model, surgical, undoing

CORE = "sequence_hooks.v1.core"
FRONT = "sequence_hooks.v1.frontend"
SCHEDULER = f"{CORE}.scheduler:HookScheduler"
PARAMS = f"{CORE}.params"
CORNERS = "mytests/v1/test_corners.py"
FORKS = "mytests/v1/test_forks.py"
ON_A_MODEL = "mytests/v1/test_on_a_model.py"
REFUSED = "mytests/v1/test_checks.py::test_what_cannot_work_is_refused"

TRAPS = (
    undoing(
        "a waiting request takes a slot",
        "blocked-ones-are-queued",
        "BLOCKED parents take the slots that their children need, and no sequence goes on.",
        (
            Edit(
                f"{SCHEDULER}.block_sequence",
                "self.blocked[request.request_id] = request",
                "self.blocked[request.request_id] = request\n"
                "        ReleaseScheduler._enqueue_waiting_request(self, request)",
            ),
        ),
        surgical(f"{FORKS}::test_blocked_parents_take_no_slot"),
    ),
    undoing(
        "a waiting request takes a slot",
        "new-requests-go-first",
        "New requests take the slots that a tree needs to end.",
        (Edit(f"{SCHEDULER}._holds_kv_blocks", "self.kv.is_of_a_tree(request) or ", ""),),
        surgical(
            "mytests/rules/test_edge_cases.py::TestFullBatches::test_a_tree_that_has_begun_goes_before_new_requests"
        ),
    ),
    undoing(
        "its two model runners learn tokens",
        "a-join-is-no-session",
        "A model runner does not learn the tokens that a join has merged.",
        (
            Edit(
                f"{CORE}.requests:begin_session",
                "",
                "request.sampling_params, request.max_tokens = params, params.max_tokens",
            ),
        ),
        surgical("mytests/rules/test_semantics.py"),
        model(f"{ON_A_MODEL}::test_the_model_joins_what_its_children_return"),
    ),
    undoing(
        "tokens without logprobs end a stream",
        "merged-tokens-have-no-logprobs",
        "Merged tokens come without the logprobs that their children sampled them with.",
        (Edit(f"{FRONT}.sequences:OutputSequence.entries_of", "if sampled is not None:", "if False:"),),
        surgical("mytests/rules/test_accounting.py::TestAccounting::test_logprobs_of_merged_tokens_are_the_childs"),
        model(f"{ON_A_MODEL}::test_logprobs_tell_the_tokens"),
    ),
    undoing(
        "stop strings are looked for in the front end",
        "the-core-finds-no-stop-string",
        "A tree samples on after its stop string, and spawns children that nobody sees.",
        (Edit(f"{CORE}.stop_strings:has_stop_strings", "", "return False"),),
        surgical("mytests/rules/test_text.py::TestStopStrings"),
    ),
    undoing(
        "some releases look at the length before the end",
        "an-eos-is-merged",
        "The EOS of a child becomes part of its parent's context.",
        (
            Edit(
                f"{CORE}.sequence:V1Sequence.stop_tokens_after",
                "stop_tokens = range(num_output - 1, num_output)",
                "stop_tokens = range(0)",
            ),
        ),
        surgical(
            "mytests/rules/test_semantics.py::TestTheEndsOfAChild::test_its_result_is_what_it_sampled_before_its_end"
        ),
    ),
    undoing(
        "unknown fields of an output are dropped",
        "events-are-dropped",
        "The front end never learns of a tree.",
        (Edit(f"{CORE}.event_log:EventLog.write", "[log, *of_client.outputs,", "[*of_client.outputs,"),),
        surgical(FORKS, "mytests/rules/test_semantics.py"),
    ),
    undoing(
        "a large step reaches the front end in several calls",
        "events-come-too-early",
        "Events happen before the tokens that caused them.",
        (Edit(f"{FRONT}.output_processor:HookOutputProcessor.process_outputs", "if step.num_outputs:", "if False:"),),
        surgical("mytests/v1/test_chunks.py"),
    ),
    undoing(
        "a new prompt resets",
        "max-tokens-begin-anew",
        "After a join a sequence may sample all of max_tokens again.",
        (Edit(f"{PARAMS}:params_after_join", "own.max_tokens - branch.num_sampled", "own.max_tokens"),),
        surgical("mytests/v1/test_params.py::test_after_a_join_limits_are_what_is_left_of_them"),
    ),
    undoing(
        "a new prompt resets",
        "min-tokens-begin-anew",
        "After a join a sequence has to sample all of min_tokens again.",
        (Edit(f"{PARAMS}:params_after_join", "max(0, own.min_tokens - branch.num_sampled)", "own.min_tokens"),),
        surgical("mytests/v1/test_params.py::test_after_a_join_limits_are_what_is_left_of_them"),
    ),
    undoing(
        "a new prompt resets",
        "the-first-sampler-forgets",
        "In the first model runner, penalties and bad words forget what was sampled before a join.",
        (Edit("sequence_hooks.v1.worker.prior_output_batch_runner:PriorOutputTokens.apply", "", "return logits"),),
        surgical("mytests/v1/test_prior_output.py::test_a_join_changes_no_penalty_and_no_bad_word"),
    ),
    undoing(
        "a new prompt resets",
        "the-second-sampler-forgets",
        "In the second model runner, penalties and bad words forget what was sampled before a join.",
        (
            Edit(
                "sequence_hooks.v1.worker.prior_output_slot_runner:PriorOutputCounts.apply_staged_writes", "", "return"
            ),
        ),
        surgical("mytests/v1/test_prior_output.py::test_the_second_runner_counts_and_forbids_the_same"),
    ),
    undoing(
        "a new prompt resets",
        "the-first-sampler-is-not-extended",
        "The sampler of the first model runner never learns what a joined sequence has sampled.",
        (
            Edit(
                "sequence_hooks.v1.worker.attach:attach",
                "batch.logitsprocs.non_argmax_invariant.append(PriorOutputTokens(model_runner.device))",
                "pass",
            ),
        ),
        model(f"{ON_A_MODEL}::test_the_sampler_is_extended"),
    ),
    undoing(
        "with a new prompt the first model runner keeps",
        "a-join-keeps-its-generator",
        "A seeded request is another one beside others than alone.",
        (Edit("sequence_hooks.v1.worker.seeds:reseed", "", "pass"),),
        surgical("mytests/v1/test_seeds.py"),
        model("mytests/v1/test_seeds_on_a_model.py"),
    ),
    undoing(
        "after a part of a prompt the first model runner rewinds",
        "cpus-rewind-by-an-offset",
        "A seeded request whose prompt is computed in parts ends the engine on a CPU.",
        (Edit("sequence_hooks.v1.worker.cpu_seeds:replace_generators", "", "pass"),),
        model("mytests/v1/test_seeds_on_a_model.py::test_a_prompt_in_parts"),
    ),
    undoing(
        "prompt logprobs of a resume",
        "prompt-logprobs-are-taken-again",
        "A resume asks for prompt logprobs, which are read from memory that nobody has written.",
        (Edit(f"{PARAMS}:params_after_join", "params.prompt_logprobs = None", "pass"),),
        surgical("mytests/rules/test_accounting.py::TestAccounting::test_prompt_logprobs_are_not_taken_again"),
    ),
    undoing(
        "batch queues drop steps without tokens",
        "pipelines-are-allowed",
        "With pipeline parallelism, steps without tokens are dropped with all that they tell.",
        (Edit("sequence_hooks.v1.startup:check_engine", "parallel.pipeline_parallel_size > 1", "False"),),
        surgical(REFUSED),
    ),
    undoing(
        "batch queues drop steps without tokens",
        "the-engine-stops-before-it-has-told",
        "The engine sleeps with events that nobody has been told.",
        (Edit(f"{SCHEDULER}.has_requests", " or bool(self._events)", ""),),
        surgical(f"{CORNERS}::test_the_engine_stays_awake_while_something_is_to_be_told"),
    ),
    undoing(
        "an output that is added to another",
        "added-outputs-lose-trees",
        "A slow reader's stream loses its tree.",
        (Edit(f"{FRONT}.outputs:RequestOutput.add", "", "super().add(next_output, aggregate)"),),
        surgical("mytests/v1/test_outputs.py"),
    ),
    undoing(
        "an engine whose requests all wait for callers",
        "waiting-for-callers-spins",
        "An engine whose sequences all wait for callers runs empty steps without an end.",
        (
            Edit(
                f"{SCHEDULER}.has_requests",
                "or self.trees.has_unsettled",
                "or self.trees.has_unsettled or bool(self.blocked)",
            ),
        ),
        surgical("mytests/rules/test_resume.py::TestResume::test_it_waits_without_an_end"),
    ),
    undoing(
        "an engine whose requests all wait for callers",
        "a-resumption-wakes-nobody",
        "An engine that sleeps does not notice that a caller has resumed a sequence.",
        (Edit(f"{SCHEDULER}.has_requests", " or self.trees.has_unsettled", ""),),
        surgical("mytests/rules/test_resume.py::TestResume"),
    ),
    undoing(
        "a request ends with a token of its own",
        "a-tree-that-ends-stays-queued",
        "A sequence whose tree has used up its tokens stays in upstream's queue, and samples on.",
        (Edit(f"{SCHEDULER}.block_sequence", "leave_queues(self, request)", "pass"),),
        surgical("mytests/rules/test_tree_budget.py::TestWhoEnds"),
    ),
    undoing(
        "requests get their EOS, bad words and checks",
        "overridden-children-have-no-eos",
        "A child with parameters of its own never ends at an EOS, and ignores its bad words.",
        (Edit(f"{PARAMS}:child_params", "completer.complete(params)", "pass"),),
        surgical("mytests/v1/test_params.py::test_an_overridden_child_ends_as_the_model_does"),
    ),
    undoing(
        "requests get their EOS, bad words and checks",
        "childrens-parameters-are-not-verified",
        "Parameters that no request could have end the engine in a step.",
        (Edit(f"{PARAMS}:check_child", "verify(params)", "pass"),),
        surgical("mytests/v1/test_checks.py::test_parameters_that_no_child_could_have_are_refused"),
    ),
    undoing(
        "with data parallelism a request goes to any engine",
        "a-resumption-goes-anywhere",
        "With data parallelism, a resumption goes to an engine where no such sequence waits.",
        (
            Edit(
                "sequence_hooks.v1.resuming:resumption",
                "bare_request(branch.root.sequence.engine_id",
                'bare_request("resumption"',
            ),
        ),
        surgical(f"{CORNERS}::test_a_resumption_goes_where_its_request_is"),
    ),
    undoing(
        "with data parallelism and experts all engines compute",
        "a-resumption-owes-no-step",
        "Other engines wait in their model for one whose resumption needs no step.",
        (Edit(f"{SCHEDULER}.add_request", "self._pending_step.begin()\n        ", ""),),
        surgical("mytests/v1/test_lockstep.py"),
    ),
    undoing(
        "a grammar is asked after its token",
        "a-refused-promise-waits",
        "A sequence whose promise its grammar refuses is BLOCKED for ever.",
        (Edit(f"{SCHEDULER}._handle_stopped_request", " or request.is_finished()", ""),),
        surgical(f"{CORNERS}::test_a_promise_that_a_grammar_does_not_accept_ends_its_request"),
    ),
)

NOT_PLANTED = {
    "another scheduler switches asynchronous scheduling off": "The remedy is a base class, which no edit of a function "
    "changes; and `HookScheduler` calls that class by its name, so that with another one no engine starts.",
    "up to 0.31, cascade attention counts": "The release that is installed has no cascade attention; `make "
    "test-releases` runs the test of the refusal on those that have it.",
}
"""Traps whose remedies cannot be undone by themselves, and why."""

# SPDX-License-Identifier: Apache-2.0
"""Random walks over the real scheduler and block manager: trees stay sound whatever happens, in whatever order.

After each step of a walk queues, blocks, segments and a pretended KV cache are checked; at the end of each
request its tokens are compared with those of a reference that knows nothing of scheduling.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_walks

from mytests.characters import CHILD
from mytests.pretended_kv import PretendedKV
from mytests.reference import Reference
from mytests.surgical import EOS, PROMISE, SYNC, SurgicalEngine, ids
from mytests.tiers import sizes
from vllm.config import SpecialKwargs
from vllm.core.hooked_sequence import V0Branch, branch_of, num_alike
from vllm.sequence import SequenceGroup, SequenceStatus

QUEUES = ("waiting", "running", "swapped", "blocked", "forked")
TOKENS = st.sampled_from([PROMISE, *ids("xxxyy"), PROMISE, SYNC, EOS])
MUST_ARISE = {
    *("RUNNING to WAITING", "RUNNING to SWAPPED", "SWAPPED to RUNNING", "WAITING to FINISHED_IGNORED"),
    *("BLOCKED without KV", "BLOCKED to WAITING", "BLOCKED to RUNNING", "BLOCKED to FINISHED_STOPPED", "resumed"),
    *(f"abort {queue} at depth 0" for queue in ("waiting", "running", "swapped", "blocked")),
    *("abort running at depth 1", "abort forked at depth 1"),
    "injected",
    *("KV to swap", "KV to discard", "BLOCKED in swap space", "BLOCKED with some KV", "preempted with its prefix"),
}
"""What the walks have to reach: changes of status within a step, and aborts."""

MAX_QUEUED = 8
MAX_IDLE_STEPS = 6
"""Enough to preempt all that runs."""


class Trees(RuleBasedStateMachine):
    """Requests that come, spawn, block, join, are resumed, preempted, aborted and end."""

    seen: Counter[str] = Counter()
    """What has arisen, over all walks."""

    engine: SurgicalEngine
    hooks: SpecialKwargs

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """An engine with little of everything."""

        def draw(*choices: Any) -> Any:
            return data.draw(st.sampled_from(choices))

        children = draw(1, 2, 3)
        strategy = draw("kv_inject", "concatenate", "none")
        # Only children that see their parent have KV that can be injected.
        others = ["before_trigger", "none"] if strategy != "kv_inject" or draw(False, False, True) else []
        context = draw("parent", *others)
        self.hooks = SpecialKwargs(
            promise_token_id=PROMISE,
            sync_token_id=SYNC,
            block_on=draw("promise", "sync", *(["never"] if strategy != "kv_inject" else [])),
            child_context=context,
            child_prefix_token_ids=() if context == "parent" else (CHILD,),
            sync_resume=draw("auto", "manual"),
            max_child_depth=draw(3, 2, 1, 0),
            children_per_promise=children,
            max_children=draw(*range(children, 9)),
            child_merge_strategy=strategy,
            position_rule=draw("sequential", "overlap") if strategy == "kv_inject" else "sequential",
            blocked_kv_policy=draw("swap", "auto", "discard", "preserve"),
        )
        self.engine = _tight_engine(self.hooks, draw)
        self.reference = Reference(self.hooks, self.engine.max_model_len)
        self.roots: list[SequenceGroup] = []
        self.idle_steps = 0

    @precondition(lambda self: len(self.engine.queued()) < MAX_QUEUED)
    @rule(
        length=st.integers(1, 30),
        letter=st.sampled_from("pq"),
        max_tokens=st.sampled_from([100, 20, 5]),
        priority=st.integers(0, 2),
        adapter=st.integers(0, 3),
    )
    def add(self, length: int, letter: str, max_tokens: int, priority: int, adapter: int) -> None:
        """Adds a request; there are few letters, so that prefixes are alike."""
        prompt = letter * min(length, self.engine.max_model_len - 1)
        adapter = adapter if self.engine.max_loras else 0
        name = f"r{len(self.roots)}"
        self.roots.append(self.engine.add(name, prompt, priority, adapter, max_tokens=max_tokens))

    @precondition(lambda self: self.roots)
    @rule(tokens=st.lists(TOKENS, min_size=5, max_size=5))
    def step(self, tokens: list[int]) -> None:
        """Takes one step, in which each group that samples gets the next of the tokens."""
        drawn = iter(tokens)
        self._step(lambda group: self.reference.feed(group.request_id, next(drawn)))

    @precondition(lambda self: self.roots)
    @rule(steps=st.integers(2, 12))
    def decode(self, steps: int) -> None:
        """Takes steps of ordinary tokens, which fill blocks."""
        for _ in range(steps):
            self._step(lambda group: self.reference.feed(group.request_id, ord("x")))

    @precondition(lambda self: self.engine.queued())
    @rule(index=st.integers(0, 63))
    def abort(self, index: int) -> None:
        """Aborts any live sequence, with all below it."""
        queued = self.engine.queued()
        group = queued[index % len(queued)]
        branch = branch_of(group)
        queue = next(name for name in QUEUES if group in getattr(self.engine.scheduler, name))
        self.seen[f"abort {queue} at depth {branch.depth if branch else 0}"] += 1
        self.engine.scheduler.abort_seq_group(group.request_id)

    @precondition(lambda self: any(self.engine.processor.awaiting_resume()))
    @rule(index=st.integers(0, 63), text=st.sampled_from(["", "r", "rs" * 10]))
    def resume(self, index: int, text: str) -> None:
        """Resumes a sequence that waits for its caller."""
        waiting = list(self.engine.processor.awaiting_resume())
        self._resume(waiting[index % len(waiting)], text)

    @invariant()
    def books_add_up(self) -> None:
        """Trees, queues and blocks are consistent, and each unfinished sequence is in a queue."""
        self.engine.scheduler.check_integrity()
        queued = {group.request_id for group in self.engine.queued()}
        assert queued == {group.request_id for group in self._all() if not group.first_seq.is_finished()}
        assert len(self.engine.scheduler.running) <= self.engine.max_num_seqs

    @invariant()
    def tables_fit(self) -> None:
        """Block tables exist where they must, and only where they may, and cover what is computed."""
        scheduler, manager = self.engine.scheduler, self.engine.scheduler.block_manager
        must = {g.first_seq.seq_id for g in [*scheduler.running, *scheduler.swapped, *scheduler.forked]}
        kept = scheduler._kept.seq_ids
        may = must | kept | {g.first_seq.seq_id for g in scheduler.blocked}
        assert must <= manager.block_tables.keys() <= may
        assert set(manager._computed_blocks_tracker._seq_id_to_blocks_hashes) <= may
        seqs = {group.first_seq.seq_id: group.first_seq for group in self._all()}
        tables = manager.block_tables
        for seq_id, table in ((i, t) for i, t in tables.items() if i not in kept):
            assert num_alike(seqs[seq_id]) <= table.num_full_slots <= seqs[seq_id].get_len()

    def teardown(self) -> None:
        """All live sequences come to their end, and leave nothing."""
        if not hasattr(self, "engine"):
            return
        for _ in range(400):
            if not self.engine.scheduler.has_unfinished_seqs():
                break
            for branch in list(self.engine.processor.awaiting_resume()):
                self._resume(branch, "")
            self._step(lambda group: self.reference.feed(group.request_id, EOS))
        self.engine.assert_empty()
        for group in self.roots:
            if group.first_seq.status != SequenceStatus.FINISHED_ABORTED:
                output = self.engine.outputs[group.request_id]
                assert output.finished
                (completion,) = output.outputs
                sampled = completion.token_ids if completion.sampled is None else completion.sampled.token_ids
                num_prompt = group.first_seq.get_prompt_len()
                assert list(sampled) == self.reference.output(group.request_id, num_prompt, branch_of(group))

    def _step(self, tokens: Any) -> None:
        scheduler = self.engine.scheduler
        before = {group.request_id: group.first_seq.status for group in self.engine.queued()}
        scheduled = self.engine.step(tokens)
        waits = scheduler.is_waiting_for_callers() or not self.engine.queued()
        self.idle_steps = 0 if scheduled or waits else self.idle_steps + 1
        assert self.idle_steps <= MAX_IDLE_STEPS, self.engine.statuses()
        for group in self._all():
            was, now = before.get(group.request_id), group.first_seq.status
            if was is not None and was != now:
                self.seen[f"{was.name} to {now.name}"] += 1
        self._see_kv(before)

    def _see_kv(self, before: dict[str, SequenceStatus]) -> None:
        scheduler = self.engine.scheduler
        for group in scheduler.blocked:
            seq, table = group.first_seq, scheduler.block_manager.block_tables.get(group.first_seq.seq_id)
            self.seen["BLOCKED without KV"] += table is None
            self.seen["BLOCKED with some KV"] += table is not None and 0 < table.num_full_slots < seq.get_len() - 1
            self.seen["BLOCKED in swap space"] += table is not None and not scheduler._blocks.is_on_device(seq)
        for group in scheduler.forked:
            self.seen["preempted with its prefix"] += before.get(group.request_id) == SequenceStatus.RUNNING
        assert isinstance(self.engine.model, PretendedKV)
        self.seen["injected"] += self.engine.model.num_injected
        for means, times in scheduler.evictor.evictions.items():
            self.seen[f"KV to {means}"] += times

    def _resume(self, branch: V0Branch, text: str) -> None:
        name = branch.request_id
        text = text[: self.engine.processor.room_to_resume(name).num_tokens]
        self.reference.given.setdefault(name, []).append(ids(text))
        self.engine.processor.resume(name, text)
        self.seen["resumed"] += 1

    def _all(self) -> Iterator[SequenceGroup]:
        """Every group of every tree."""
        groups = list(getattr(self, "roots", ()))
        for group in groups:
            yield group
            groups += [child.sequence.group for child in getattr(branch_of(group), "children", ())]


def _tight_engine(hooks: SpecialKwargs, draw: Callable[..., Any]) -> SurgicalEngine:
    """An engine with little of everything. Swap space excludes prefix caching: upstream cannot have both."""
    block_size, num_blocks, prefix_caching = draw(8, 16, 32), draw(*range(2, 10)), draw(False, True)
    num_cpu_blocks = 0 if prefix_caching else draw(512, 0)
    # If swapped sequences can outgrow the GPU, upstream does not start; if others can, they fail.
    can_outgrow = not num_cpu_blocks and draw(False, True)
    return SurgicalEngine(
        hooks,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=draw(2, 1, 3, 5),
        max_model_len=128 if can_outgrow else min(128, num_blocks * block_size),
        max_num_batched_tokens=draw(block_size if prefix_caching else 16, 32, 512),
        prefix_caching=prefix_caching,
        scheduling_policy=draw("fcfs", "priority"),
        max_loras=draw(None, 1, 2),
        num_cpu_blocks=num_cpu_blocks,
        model=PretendedKV(block_size),
    )


@sizes(700, 2_000)
def test_random_walks(size: int) -> None:
    """All invariants hold, and the walks reach all that they must."""
    Trees.seen.clear()
    run_walks(
        Trees,
        settings=settings(max_examples=size, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)),
    )
    missing = {name for name in MUST_ARISE if not Trees.seen[name]}
    assert not missing, Trees.seen

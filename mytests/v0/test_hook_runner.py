# SPDX-License-Identifier: Apache-2.0
"""What a model runner does with `HookedMetadata`: copies before the forward pass, shifted positions."""

import inspect
import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mytests.harness.kv_copies import TinyModel, metadata
from vllm.core.hooked_metadata import HookedMetadata, Run, SlotCopy
from vllm.model_executor.layers.sampler import SamplerOutput
from vllm.sequence import IntermediateTensors, SequenceGroupMetadata
from vllm.worker.cpu_worker import CPUWorker
from vllm.worker.hook_cpu_worker import HookCPUModelRunner, HookCPUWorker, HookModelInputForCPU
from vllm.worker.hook_gpu_worker import HookModelInputForGPU, HookModelRunner, HookWorker
from vllm.worker.hook_runner import HookRunner
from vllm.worker.model_runner_base import ModelRunnerBase
from vllm.worker.worker import Worker

COPY = SlotCopy(source=0, destination=5, source_position=0, position=7)
INPUTS = [HookModelInputForCPU, HookModelInputForGPU]


class TestHookedMetadata:
    def test_it_is_the_plain_metadata_and_more(self) -> None:
        """Fields are the same objects, so upstream's changes to them reach both; its own survive pickling."""
        plain = metadata(do_sample=False, token_chunk_size=2)
        hooked = HookedMetadata.of(plain, slot_copies=(COPY,), position_offset=-1)
        assert isinstance(hooked, SequenceGroupMetadata)
        assert all(getattr(hooked, name) is getattr(plain, name) for name in plain.__struct_fields__)
        for each in (hooked, pickle.loads(pickle.dumps(hooked))):
            assert (each.slot_copies, each.position_offset) == ((COPY,), -1)

    def test_it_can_be_changed_again(self) -> None:
        """The fields that it was made with stay."""
        hooked = HookedMetadata.of(metadata(), slot_copies=(COPY,))
        again = HookedMetadata.of(hooked, position_offset=-2, token_chunk_size=1)
        assert (again.slot_copies, again.position_offset, again.token_chunk_size) == ((COPY,), -2, 1)
        assert again.seq_data is hooked.seq_data


@dataclass
class UpstreamRunner(ModelRunnerBase):
    """The runner after the mixin in the MRO: it prepares a step's inputs, and records what is executed."""

    vllm_config: Any = None
    kv_cache_dtype: str = "auto"
    is_driver_worker: bool = True
    attn_backend: Any = None
    device: str = "cpu"
    pin_memory: bool = False
    query_lens: tuple[int, ...] = ()
    num_padded: int = 0
    tiny: TinyModel = field(default_factory=TinyModel)
    outputs: Any = "outputs"
    executed: list[Any] = field(default_factory=list)

    def load_model(self) -> None:
        self.model = self.tiny.module
        compilation = SimpleNamespace(static_forward_context=self.tiny.context)
        self.vllm_config = SimpleNamespace(compilation_config=compilation)

    def get_model(self) -> Any:
        return self.model

    def make_model_input_from_broadcasted_tensor_dict(self, tensor_dict: dict[str, Any]) -> Any:
        raise AssertionError("would make an input of upstream's class")

    def prepare_model_input(self, seq_group_metadata_list: list[Any], virtual_engine: int = 0) -> Any:
        """Each entry's tokens have the positions from 10 on."""
        self.prepared = seq_group_metadata_list
        positions = [position for length in self.query_lens for position in range(10, 10 + length)]
        return HookModelInputForCPU(
            input_positions=torch.tensor(positions + [0] * self.num_padded),
            query_lens=list(self.query_lens),
            virtual_engine=virtual_engine,
        )

    def execute_model(self, model_input: Any, kv_caches: Any, **kwargs: Any) -> Any:
        self.executed.append((self.tiny.rows(), kv_caches, kwargs))
        return self.outputs


class Runner(HookRunner, UpstreamRunner):
    """The mixin in front of a runner, as in our runners."""

    _model_input_cls = HookModelInputForCPU


def loaded(**fields: Any) -> Any:
    """A runner with a tiny model."""
    runner = Runner(**fields)
    runner.load_model()
    return runner


class TestPreparing:
    def test_the_copies_of_all_entries_make_one_tensor(self) -> None:
        """Copies are in the entries' order, on the runner's device."""
        copies = [(COPY, SlotCopy(1, 6, 1, 8)), (), (SlotCopy(2, 7, 2, 9),)]
        entries = [HookedMetadata.of(metadata(), slot_copies=each) for each in copies]
        prepared = loaded(query_lens=(3, 3, 3)).prepare_model_input(entries)
        assert prepared.slot_copies.dtype == torch.int64
        assert prepared.slot_copies.tolist() == [[0, 5, 0, 7], [1, 6, 1, 8], [2, 7, 2, 9]]
        assert prepared.input_positions.tolist() == [10, 11, 12] * 3

    def test_each_entrys_offset_shifts_its_own_tokens(self) -> None:
        """It shifts the tokens that upstream computes after a prefix-cache hit; a CUDA graph's padding stays zero."""
        offsets = [(metadata(8), -4), (metadata(), 0), (metadata(), -10)]
        entries = [HookedMetadata.of(each, position_offset=offset) for each, offset in offsets]
        prepared = loaded(query_lens=(2, 3, 1), num_padded=2).prepare_model_input(entries, 1)
        assert prepared.input_positions.tolist() == [6, 7, 10, 11, 12, 0, 0, 0]
        assert (prepared.slot_copies, prepared.virtual_engine) == (None, 1)

    def test_a_run_is_an_entry_to_upstreams_runner(self) -> None:
        """It computes the run's tokens, and only the last run samples; entries without runs pass unchanged."""
        runs = (Run(start=2, end=4, position_offset=-1), Run(start=9, end=10, position_offset=-5))
        plain, injected = metadata(), HookedMetadata.of(metadata(10, computed_block_nums=[0]), runs=runs)
        runner = loaded(query_lens=(3, 2, 1))
        prepared = runner.prepare_model_input([plain, HookedMetadata.of(injected, slot_copies=(COPY,))])
        (first, *others) = runner.prepared
        data = [entry.seq_data[0] for entry in others]
        assert first is plain
        assert [(entry.token_chunk_size, entry.do_sample) for entry in others] == [(2, False), (1, True)]
        assert [x.get_num_computed_tokens() for x in data] == [2, 9]
        assert [entry.computed_block_nums for entry in others] == [[], []]
        assert all(x.get_token_ids() is injected.seq_data[0].get_token_ids() for x in data)
        assert prepared.input_positions.tolist() == [10, 11, 12, 9, 10, 5]
        assert (prepared.slot_copies.tolist(), prepared.output_indices) == ([[*COPY]], [0, 2])

    def test_a_chunk_that_is_not_the_last_one_samples_nothing(self) -> None:
        """None of its runs does; the sequence's own data, which is the scheduler's, stays as it is."""
        entry = HookedMetadata.of(metadata(10, do_sample=False), runs=(Run(2, 4, 0), Run(5, 6, 0)))
        entry.seq_data[0].update_num_computed_tokens(7)
        runner = loaded(query_lens=(2, 1))
        runner.prepare_model_input([entry])
        assert [entry.do_sample for entry in runner.prepared] == [False, False]
        assert entry.seq_data[0].get_num_computed_tokens() == 7

    @pytest.mark.parametrize("entries", [[metadata()], []])
    def test_with_nothing_to_do_the_input_is_upstreams(
        self, entries: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The input is the same object."""
        given = object()
        monkeypatch.setattr(UpstreamRunner, "prepare_model_input", lambda *_: given)
        assert loaded().prepare_model_input(entries) is given


class TestExecuting:
    def test_copies_are_made_before_the_forward_pass(self) -> None:
        """The forward pass gets its arguments unchanged."""
        runner = loaded(query_lens=(3,))
        was = runner.tiny.rows()
        prepared = runner.prepare_model_input([HookedMetadata.of(metadata(), slot_copies=(COPY,))])
        outputs = runner.execute_model(model_input=prepared, kv_caches="caches", num_steps=1)
        ((seen, kv_caches, others),) = runner.executed
        assert all(torch.equal(new[5, 1], old[0, 1]) for old, new in zip(was, seen, strict=True))
        assert (outputs, kv_caches, others) == ("outputs", "caches", {"num_steps": 1})

    def test_without_copies_nothing_is_touched(self) -> None:
        """Caches are not even read: in a profiling run they do not exist yet."""
        runner = loaded(query_lens=(3,))
        runner.tiny.attentions[0].kv_cache.clear()
        runner.executed = SimpleNamespace(append=lambda _: None)
        runner.tiny = SimpleNamespace(rows=list)
        assert runner.execute_model(runner.prepare_model_input([metadata()]), None) == "outputs"

    def test_an_entry_has_the_output_of_its_last_run(self) -> None:
        """There is one output per entry, as the engine expects; intermediate tensors of earlier stages pass."""
        entries = [metadata(), HookedMetadata.of(metadata(), runs=(Run(0, 1, 0), Run(2, 3, 0))), metadata()]
        runner = loaded(query_lens=(3, 1, 1, 3), outputs=[SamplerOutput(["a", "b1", "b2", "c"])])
        (output,) = runner.execute_model(runner.prepare_model_input(entries), None)
        assert output.outputs == ["a", "b2", "c"]
        runner.outputs = IntermediateTensors({})
        assert runner.execute_model(runner.prepare_model_input(entries), None) is runner.outputs

    def test_a_model_that_cannot_be_injected_is_refused_when_it_is_loaded(self) -> None:
        """It is refused before its cache is allocated."""
        tiny = TinyModel()
        tiny.module[0].rotary_emb = None
        with pytest.raises(ValueError, match="child_merge_strategy='kv_inject' does not work with"):
            loaded(tiny=tiny)


@pytest.mark.parametrize("inputs", INPUTS)
def test_other_ranks_get_the_copies(inputs: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The dict that upstream broadcasts has them and the shifted positions, and becomes an input of our class."""
    monkeypatch.setattr(Runner, "_model_input_cls", inputs)
    sent = inputs(slot_copies=torch.tensor([COPY]), input_positions=torch.tensor([6])).as_broadcastable_tensor_dict()
    there: Any = Runner().make_model_input_from_broadcasted_tensor_dict({**sent, "virtual_engine": 2})
    assert type(there) is inputs
    assert torch.equal(there.slot_copies, sent["slot_copies"])
    assert (there.input_positions.tolist(), there.virtual_engine) == ([6], 2)


@pytest.mark.parametrize(
    ("worker", "upstreams", "runner"),
    [(HookCPUWorker, CPUWorker, HookCPUModelRunner), (HookWorker, Worker, HookModelRunner)],
)
class TestWorkers:
    def test_the_runner_of_a_worker_is_ours(
        self, worker: type[Any], upstreams: type[Any], runner: type[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Our runner is created with the arguments of the one that upstream's worker created."""
        made: dict[str, Any] = {}
        monkeypatch.setattr(upstreams, "__init__", lambda _, **kwargs: made.update(kwargs))
        monkeypatch.setattr(runner, "__init__", lambda self, **kwargs: self.__dict__.update(kwargs))
        worker(rank=3)
        ours = made["model_runner_cls"](UpstreamRunner("config", "auto", is_driver_worker=False))
        assert (made["rank"], type(ours)) == (3, runner)
        assert vars(ours) == {"vllm_config": "config", "kv_cache_dtype": "auto", "is_driver_worker": False}

    def test_only_what_a_hook_adds_is_ours(self, worker: type[Any], upstreams: type[Any], runner: type[Any]) -> None:
        """The mixin comes first, upstream's builder makes inputs of our class, and its constructors take ours."""
        mixin, upstream_runner = runner.__mro__[1:3]
        assert (mixin, upstream_runner.__module__.startswith("vllm.worker.")) == (HookRunner, True)
        assert runner._model_input_cls in INPUTS
        assert issubclass(worker, upstreams)
        inspect.signature(runner).bind(vllm_config=None, kv_cache_dtype=None, is_driver_worker=None)
        assert "model_runner_cls" in inspect.signature(upstreams).parameters

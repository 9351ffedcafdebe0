# SPDX-License-Identifier: Apache-2.0
"""What the tests of the rules need of the surgical engine of V0; `mytests.v1.rules` has the same of V1."""

from typing import Any

from mytests.pretended_kv import Entry, PretendedKV
from mytests.surgical import HOOKS as HOOKS
from mytests.surgical import SYNC_HOOKS as SYNC_HOOKS
from mytests.surgical import SurgicalEngine
from mytests.surgical import finished as finished
from mytests.surgical import plan as plan
from sequence_hooks.kv.transfer import SlotCopy
from vllm.config import SpecialKwargs
from vllm.engine.child_params import inherit as inherit
from vllm.engine.output_processor.sequence_hook import EngineFacts
from vllm.sequence import SequenceGroup
from vllm.transformers_utils.detokenizer import Detokenizer
from vllm.utils import Device


class TokenizerGroup:
    """One tokenizer for all sequences, as V0's detokenizer takes it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def get_lora_tokenizer(self, lora_request: object = None) -> Any:
        return self.tokenizer


def speaking(special_kwargs: SpecialKwargs, tokenizer: Any, **fields: Any) -> SurgicalEngine:
    """An engine with upstream's own detokenizer."""
    given = {"detokenizer": Detokenizer(TokenizerGroup(tokenizer)), "facts": EngineFacts(tokenizer, len(tokenizer))}
    return SurgicalEngine(special_kwargs, tokenizer=tokenizer, **given | fields)


def checking_reads(special_kwargs: SpecialKwargs, **fields: Any) -> SurgicalEngine:
    """An engine whose pretended KV cache checks that every token reads its own context, or what was injected for it."""
    return SurgicalEngine(special_kwargs, **{"model": PretendedKV(4)} | fields)


def injected(engine: SurgicalEngine) -> list[SlotCopy]:
    """All that such an engine has injected."""
    assert isinstance(engine.model, PretendedKV)
    return engine.model.copies


def cached_entries(engine: SurgicalEngine) -> list[Entry]:
    """What the slots of all blocks in the prefix cache hold."""
    assert isinstance(engine.model, PretendedKV)
    blocks = engine.scheduler.block_manager.block_allocator._allocators[Device.GPU]._cached_blocks.values()
    return [entry for block in blocks for entry in engine.model.blocks[("gpu", block)].values()]


def cached(engine: SurgicalEngine, request: Any) -> int:
    """The number of tokens of a request, which has just been added, that the prefix cache has."""
    return engine.scheduler.block_manager.get_num_cached_tokens(request.first_seq)


def request_of(engine: SurgicalEngine, request_id: str) -> SequenceGroup:
    """What upstream has of an unfinished sequence: its group."""
    return next(group for group in engine.queued() if group.request_id == request_id)

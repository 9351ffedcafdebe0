# SPDX-License-Identifier: Apache-2.0
"""What the tests of the rules need of the surgical engine of V1; `mytests.rules.v0` has the same of V0."""

from typing import Any

import pytest

from mytests.v1.surgical import HOOKS as HOOKS
from mytests.v1.surgical import SYNC_HOOKS as SYNC_HOOKS
from mytests.v1.surgical import Mode, SurgicalEngine
from mytests.v1.surgical import finished as finished
from mytests.v1.surgical import plan as plan
from mytests.v1.worker import Entry
from sequence_hooks import SpecialKwargs
from sequence_hooks.kv.transfer import SlotCopy
from sequence_hooks.v1.core.params import inherit as inherit
from vllm.v1.request import Request


def run_in(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engines that a test makes run in one of the `MODES` of the rules."""
    schedule, runner = mode.split("-")
    monkeypatch.setattr(Mode, "is_async", schedule == "asynchronous")
    monkeypatch.setattr(Mode, "runner", runner)


def speaking(special_kwargs: SpecialKwargs, tokenizer: Any, **fields: Any) -> SurgicalEngine:
    """An engine with upstream's own detokenizer, as all are."""
    return SurgicalEngine(special_kwargs, tokenizer=tokenizer, **{"vocab_size": len(tokenizer)} | fields)


def checking_reads(special_kwargs: SpecialKwargs, **fields: Any) -> SurgicalEngine:
    """An engine whose worker checks what every slot holds, as all do."""
    return SurgicalEngine(special_kwargs, **fields)


def injected(engine: SurgicalEngine) -> list[SlotCopy]:
    """All that it has injected."""
    return engine.worker.injected


def cached_entries(engine: SurgicalEngine) -> list[Entry]:
    """What the slots of all blocks in the prefix cache hold."""
    blocks = [block for block in engine.scheduler.kv_cache_manager.block_pool.blocks if block.block_hash is not None]
    return [entry for block in blocks for entry in engine.worker.kv[block.block_id].values()]


def cached(engine: SurgicalEngine, request: Any) -> int:
    """The number of tokens of a request, which has just been added, that the prefix cache has."""
    found: int = engine.scheduler._get_local_prefix_cache_hit(request)[1]
    return found


def request_of(engine: SurgicalEngine, request_id: str) -> Request:
    """What upstream has of an unfinished sequence."""
    request: Request = engine.scheduler.requests[request_id]
    return request

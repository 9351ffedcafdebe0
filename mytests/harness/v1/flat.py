# SPDX-License-Identifier: Apache-2.0
"""What a front end without trees would be told, beside what ours is: each run of a surgical engine compares them."""

from collections import defaultdict
from typing import Any

from sequence_hooks import SpecialKwargs
from sequence_hooks.tree.events import TreeEvent
from sequence_hooks.v1.core.event_log import EventLog
from sequence_hooks.v1.core.flat_log import FlatLog
from sequence_hooks.v1.core.sequence import V1Branch
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutputs


class BothLogs:
    """The log of a scheduler, and one for a front end without trees, of which each is told what the other is."""

    checks_requests = False

    def __init__(self, special_kwargs: SpecialKwargs) -> None:
        self._log, self._flat = EventLog(), FlatLog(special_kwargs)
        self._tokens: defaultdict[str, list[int]] = defaultdict(list)
        self._logprobs: defaultdict[str, list[float]] = defaultdict(list)

    def __bool__(self) -> bool:
        return bool(self._log)

    def begin_step(self) -> None:
        self._log.begin_step()
        self._flat.begin_step()

    def note(self, branch: V1Branch, event: TreeEvent) -> None:
        self._log.note(branch, event)
        self._flat.note(branch, event)

    def note_older_kv(self, branch: V1Branch) -> None:
        self._log.note_older_kv(branch)

    def finish(self, branch: V1Branch) -> None:
        self._log.finish(branch)
        self._flat.finish(branch)

    def write(self, outputs: dict[int, EngineCoreOutputs], stats: Any) -> None:
        flat = {client: EngineCoreOutputs(outputs=list(each.outputs)) for client, each in outputs.items()}
        self._flat.write(flat, stats)
        for output in (output for each in flat.values() for output in each.outputs):
            self._tokens[output.request_id] += output.new_token_ids
            if output.new_logprobs is not None:
                self._logprobs[output.request_id] += output.new_logprobs.logprobs[:, 0].tolist()
        self._log.write(outputs, stats)

    def check(self, output: Any, kind: RequestOutputKind) -> None:
        """Hold a finished output against what was told without its tree; a front end cuts it at a stop string."""
        (made,) = output.outputs
        tokens, logprobs = self._tokens.pop(output.request_id, []), self._logprobs.pop(output.request_id, None)
        if kind == RequestOutputKind.DELTA:
            return
        sampled = made.sampled or made
        end = len(sampled.token_ids) if isinstance(made.stop_reason, str) else None
        assert tokens[:end] == list(sampled.token_ids)
        if logprobs is not None:
            entries = zip(sampled.token_ids, sampled.logprobs, strict=True)
            assert logprobs[:end] == [entry[token_id].logprob for token_id, entry in entries]

    def assert_empty(self) -> None:
        assert not self._flat and not self._flat._told

# SPDX-License-Identifier: Apache-2.0
"""An engine before a front end that knows no trees. What it tells of trees every surgical engine compares, see
`mytests.harness.v1.flat`; here is what it refuses."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from mytests.harness.characters import PROMISE
from mytests.harness.surgical import HOOKS
from mytests.harness.v1.configuration import config_with
from mytests.harness.v1.surgical import SurgicalEngine
from sequence_hooks.v1.core.event_log import EventLog
from sequence_hooks.v1.core.flat_log import FlatLog, event_log_of
from sequence_hooks.v1.settings import FLAT_FRONT_END
from sequence_hooks.v1.wire import RESUME
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import FinishReason
from vllm.v1.request import Request


def request(request_id: str = "r", prompt: list[int] | None = None, **fields: Any) -> Request:
    embeds, resumable = fields.pop("prompt_embeds", None), fields.pop("resumable", False)
    return Request(
        request_id,
        prompt_token_ids=prompt or [97],
        sampling_params=SamplingParams(**{"max_tokens": 4} | fields),
        pooling_params=None,
        prompt_embeds=embeds,
        resumable=resumable,
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (request("r_child_0"), "request_id is 'r_child_0'"),
        (request("sequence_hooks"), "request_id is 'sequence_hooks'"),
        (request(extra_args={"max_children": 1000}), "max_children is 1000"),
        (request(extra_args={RESUME: ("r", [])}), "which sequence hooks use themselves"),
        (request(prompt_embeds=torch.ones(1, 4)), "no prompt_embeds"),
        (request(resumable=True), "cannot be streamed"),
        (request(prompt=[97, PROMISE], extra_args={"continues": 1}), "continues"),
        (request(logprobs=0), "logprobs is 0"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_bad_request_ends_with_an_error(given: Request, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else has checked it. The engine goes on."""
    engine = SurgicalEngine(replace(HOOKS, flat_logprobs="refuse"))
    scheduler = engine.scheduler
    scheduler._events = FlatLog(engine.special_kwargs)
    with caplog.at_level(logging.ERROR, "vllm"):
        scheduler.add_request(given)
    assert reason in caplog.text
    assert not scheduler.requests and scheduler.has_requests()
    scheduled = scheduler.schedule()
    (output,) = scheduler.update_from_output(scheduled, engine.worker.run(scheduled, lambda *_: 0))[0].outputs
    assert (output.request_id, output.finish_reason) == (given.request_id, FinishReason.ERROR)
    engine.assert_empty()


@pytest.mark.parametrize(("noted", "kind"), [({}, EventLog), ({FLAT_FRONT_END: True}, FlatLog)])
def test_the_core_has_the_log_of_its_front_end(noted: dict[str, bool], kind: type[EventLog]) -> None:
    """As the process that has started the engine has noted."""
    config = config_with({"promise_token_id": 1})
    config.additional_config = {**vars(config)["additional_config"], **noted}
    assert type(event_log_of(config, HOOKS)) is kind

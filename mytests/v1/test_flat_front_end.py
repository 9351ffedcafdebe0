# SPDX-License-Identifier: Apache-2.0
"""Upstream's front end in Rust, which knows no trees, before an engine with hooks. Only its CUDA wheels have it."""

import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from forkjoin_engine import GREEDY, open_engine

from build_tools.cache import user_cache
from build_tools.fetch import fetch
from build_tools.release import Artifact
from mytests.harness.served import ENVIRONMENT, KEY, MODEL, PROMPT, Server, arguments, fields_for
from mytests.harness.servers import server
from mytests.harness.serving import COMMAND, USE_V1

pytestmark = [
    pytest.mark.model,
    pytest.mark.full,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheel that is pinned is for x86-64"),
    pytest.mark.skipif("RELEASE_UNDER_TEST" in os.environ, reason="it is that of 0.32"),
]

WHEEL = Artifact(
    "vllm-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl",
    "5e2ecdc5b0baf72921c288486417ca82778456a448e4fe60b62ee43c0dfc8611",
)
FIELDS = fields_for("promise", max_child_depth=3)


@pytest.fixture(scope="module")
def rust(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with that front end."""
    folder = tmp_path_factory.mktemp("rust")
    with ZipFile(fetch(WHEEL, user_cache())) as wheel:
        program = Path(wheel.extract("vllm/vllm-rs", folder))
    program.chmod(0o755)
    log, chosen = folder / "log", {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": str(program)}
    settings: dict[str, Any] = {"log": log, **ENVIRONMENT, **chosen}
    command = [*COMMAND, MODEL, "--api-key", KEY, "--special-kwargs", json.dumps(FIELDS)]
    with server(*command, use_v1=USE_V1, **settings) as address:
        yield Server(address, log, folder, spans=None)  # type: ignore[arg-type]


def test_a_client_gets_what_was_sampled_and_merged(rust: Server) -> None:
    """As one row, in a stream too: that of an engine in process."""
    (output,) = open_engine(FIELDS).generate([PROMPT], GREEDY, use_tqdm=False)
    expected: Any = output.outputs[0]
    assert expected.children
    asked = {**arguments(return_token_ids=True), "prompt": PROMPT, "logprobs": 0}
    choice = rust.choice(**asked)
    assert (choice.text, choice.token_ids) == (expected.text, list(expected.token_ids))
    assert len(choice.logprobs.token_logprobs) == len(choice.token_ids)
    chunks = rust.client.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected.text


@pytest.mark.parametrize("extra", [{"max_children": 1000}, {"resume_sequence": ["r", []]}], ids=list)
def test_a_bad_request_harms_no_other(rust: Server, extra: dict[str, object]) -> None:
    """It gets a 500, and the log has the reason; upstream's front end knows no other fault of an engine."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "vllm_xargs": extra}
    assert rust.call("POST", "/v1/completions", json=body).status_code == 500
    (name,) = extra
    assert any("is refused" in line and name in line for line in rust.log.read_text().splitlines())
    assert rust.choice(**arguments(), prompt=PROMPT).finish_reason == "stop"

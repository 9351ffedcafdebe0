# SPDX-License-Identifier: Apache-2.0
"""Upstream's entry points, through the overlay: command line, both engines, servers, worker processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest
from forkjoin_engine import GREEDY, MODEL_FOLDER, hooks_for, open_engine
from forkjoin_task import SYNC, expected_output

from mytests.harness.refusals import Post, Refusals
from mytests.harness.servers import API_SERVER, CLI, SURE_PROMPT, server
from mytests.harness.tiers import cases, full
from mytests.harness.ties import NUM_LOGPROBS, is_same, logprobs_of

pytestmark = pytest.mark.model

WITHOUT_HOOKS = expected_output(SURE_PROMPT).partition(SYNC)[0]
"""The first 16 tokens of the answer, which need no hooks."""


def run(*arguments: str) -> str:
    """The output of a command in a fresh interpreter."""
    environment = os.environ | {"VLLM_USE_V1": "0"}
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def complete(address: str, max_tokens: int) -> str:
    """The greedy completion of `SURE_PROMPT`, hook tokens included."""
    asked = {"max_tokens": max_tokens, "temperature": 0, "skip_special_tokens": False}
    body = {"model": str(MODEL_FOLDER), "prompt": SURE_PROMPT, **asked}
    text: str = httpx.post(f"{address}/v1/completions", json=body, timeout=120).json()["choices"][0]["text"]
    return text


@pytest.mark.parametrize(
    ("module", "option"),
    [("sequence_hooks.trace", "RUN"), full("vllm.entrypoints.openai.api_server", "--special-kwargs")],
)
def test_our_commands_explain_themselves(module: str, option: str) -> None:
    """Each describes its options with --help, without a model."""
    assert option in run("-m", module, "--help")


HOOKS = ["--special-kwargs", json.dumps(vars(hooks_for("sync")))]
STAGES = ["--pipeline-parallel-size", "2", "--distributed-executor-backend", "mp"]


@pytest.mark.parametrize(
    ("command", "options", "use_v1"),
    [
        pytest.param([*CLI, "serve"], [], "1", id="serve-v1"),
        pytest.param([*CLI, "serve"], [], "0", id="serve-v0"),
        pytest.param(API_SERVER, [], "0", id="api-server-v0"),
        # Each request's children stay in its own virtual engine; four requests use both.
        pytest.param(API_SERVER, [*HOOKS, *STAGES], "0", id="pipeline-stages"),
    ],
)
@pytest.mark.full
def test_servers(command: list[str], options: list[str], use_v1: str) -> None:
    """The engine runs in its own process, which receives its config by pickle; hooks reach it, too."""
    max_tokens, expected = (40, expected_output(SURE_PROMPT)) if options else (16, WITHOUT_HOOKS)
    with server(*command, str(MODEL_FOLDER), *options, use_v1=use_v1) as address, ThreadPoolExecutor(4) as clients:
        answers = clients.map(lambda _: complete(address, max_tokens), range(4))
        assert list(answers) == [expected] * 4


def in_two_workers(hooks: str, max_tokens: int) -> tuple[str, list[int]]:
    """The answer to `SURE_PROMPT` of a program with two tensor-parallel workers, in which ``hooks`` is evaluated."""
    printed = run(
        "-c",
        "if __name__ == '__main__':\n"
        f"    import json, sys; sys.path.insert(0, {str(MODEL_FOLDER.parent)!r})\n"
        "    from forkjoin_engine import GREEDY, hooks_for, open_engine\n"
        f"    GREEDY.max_tokens = {max_tokens}\n"
        f"    llm = open_engine({hooks}, tensor_parallel_size=2, distributed_executor_backend='mp')\n"
        f"    completion = llm.generate([{SURE_PROMPT!r}], GREEDY, use_tqdm=False)[0].outputs[0]\n"
        "    print('told', json.dumps([completion.text, list(completion.token_ids)]))\n",
    )
    (told,) = (line.removeprefix("told ") for line in printed.splitlines() if line.startswith("told "))
    text, token_ids = json.loads(told)
    return text, token_ids


@pytest.mark.floats
@pytest.mark.full
def test_worker_processes_give_the_same_tokens() -> None:
    """Two workers without hooks give the same tokens as one process."""
    text, _ = in_two_workers("None", 16)
    assert text == WITHOUT_HOOKS


@pytest.mark.floats
@pytest.mark.full
def test_worker_processes_inject_the_same_kv() -> None:
    """Each worker injects its own heads' KV; copies and positions are broadcast."""
    fields = {"child_merge_strategy": "kv_inject", "position_rule": "overlap"}
    params = GREEDY.clone()
    params.logprobs = NUM_LOGPROBS
    (output,) = open_engine(hooks_for("sync", **fields)).generate([SURE_PROMPT], params, use_tqdm=False)
    (expected,) = output.outputs
    _, token_ids = in_two_workers(f"hooks_for('sync', **{fields})", GREEDY.max_tokens)
    is_same(token_ids, expected.token_ids, logprobs_of(expected))


class TestWithoutHooks(Refusals):
    """Requests that crash upstream's engine, to each front end of V0's: the fork protects that, too."""

    @pytest.fixture(
        scope="class", params=cases({"two processes": [], "one process": ["--disable-frontend-multiprocessing"]}, [])
    )
    def post(self, request: pytest.FixtureRequest) -> Iterator[Post]:
        """Sends to a server that runs for all of these tests."""
        with server(*API_SERVER, str(MODEL_FOLDER), *request.param, use_v1="0") as address:
            call = partial(httpx.post, headers={"Content-Type": "application/json"}, timeout=120)
            yield lambda body: call(f"{address}/v1/completions", content=body)

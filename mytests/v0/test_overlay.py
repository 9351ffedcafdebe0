# SPDX-License-Identifier: Apache-2.0
"""How our tree lies over upstream's: one copy of every module, upstream's names, our changes; and its entry points."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest
from forkjoin_engine import GREEDY, MODEL_FOLDER, hooks_for, open_engine
from forkjoin_task import SYNC, expected_output

import vllm
import vllm._overlay
from mytests.harness.refusals import Post, Refusals
from mytests.harness.servers import API_SERVER, CLI, SURE_PROMPT, server
from mytests.harness.tiers import cases, full
from mytests.harness.ties import NUM_LOGPROBS, is_same, logprobs_of
from sequence_hooks.v1.stock import check_stock
from vllm._overlay import UPSTREAM_ROOT, extend_package
from vllm._upstream import sequence as upstream_sequence
from vllm.sequence import SequenceStatus

OURS = Path(vllm.__file__).parent


def overlay_modules() -> list[str]:
    """Our modules that stand at a path of upstream's."""
    found = []
    for path in OURS.rglob("*.py"):
        relative = path.relative_to(OURS)
        if "_upstream" in relative.parts or path.name in ("__init__.py", "_version.py"):
            continue
        if (UPSTREAM_ROOT / relative).is_file():
            found.append("vllm." + ".".join(relative.with_suffix("").parts))
    return sorted(found)


def our_packages() -> list[str]:
    """Our packages that upstream has too, the root excepted."""
    packages = [path.parent.relative_to(OURS) for path in OURS.glob("[!_]*/**/__init__.py")]
    return ["vllm." + ".".join(p.parts) for p in packages if (UPSTREAM_ROOT / p).is_dir()]


def run(*arguments: str) -> str:
    """The output of a command in a fresh interpreter."""
    environment = os.environ | {"VLLM_USE_V1": "0"}
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_a_module_that_we_dont_have_is_upstreams() -> None:
    """Under its usual name."""
    module = importlib.import_module("vllm.core.block_manager")
    assert module.__name__ == "vllm.core.block_manager"
    assert Path(str(module.__file__)).is_relative_to(UPSTREAM_ROOT)


def test_no_module_is_imported_twice() -> None:
    """Of upstream's modules only those that ours extend are imported as vllm._upstream.*."""
    printed = run(
        "-c",
        "import sys, vllm\n"
        "for name in vllm.__all__: getattr(vllm, name)\n"
        "import vllm.entrypoints.openai.api_server, vllm.v1.engine.async_llm\n"
        "print(*(m for m in sys.modules if m.startswith('vllm._upstream.')))",
    )
    allowed = {name.replace("vllm.", "vllm._upstream.", 1) for name in [*overlay_modules(), *our_packages()]}
    # Upstream's root package reads its own version.
    allowed |= {"vllm._upstream.version", "vllm._upstream._version"}
    assert set(printed.splitlines()[-1].split()) <= allowed


@pytest.mark.parametrize("name", overlay_modules())
def test_an_overlay_module_has_all_of_upstreams_names(name: str) -> None:
    """What we don't define is passed on; a class inherits, but for the one enum; what nobody has is an error."""
    ours = importlib.import_module(name)
    upstream = importlib.import_module(name.replace("vllm.", "vllm._upstream.", 1))
    assert [attribute for attribute in vars(upstream) if not hasattr(ours, attribute)] == []
    with pytest.raises(AttributeError, match=f"'{name}' has no attribute 'no_such_name'"):
        _ = ours.no_such_name
    for attribute, value in vars(ours).items():
        if isinstance(value, type) and value.__module__ == name and value is not SequenceStatus:
            base = getattr(upstream, attribute, None)
            assert base is None or issubclass(value, base)


def test_every_package_of_ours_reaches_upstreams_folder() -> None:
    """A subpackage without upstream's folder on its path would hide upstream's modules."""
    for name in our_packages():
        folders = list(importlib.import_module(name).__path__)
        assert any(Path(folder).is_relative_to(UPSTREAM_ROOT) for folder in folders), name


def test_sequence_status_is_upstreams_with_blocked() -> None:
    """Members and values are pinned; upstream's own module sees the same enum."""
    assert {status.name: int(status) for status in SequenceStatus} == {
        "BLOCKED": -1,
        "WAITING": 0,
        "RUNNING": 1,
        "SWAPPED": 2,
        "FINISHED_STOPPED": 3,
        "FINISHED_LENGTH_CAPPED": 4,
        "FINISHED_ABORTED": 5,
        "FINISHED_IGNORED": 6,
    }
    assert upstream_sequence.SequenceStatus is SequenceStatus


def test_a_missing_upstream_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first thing that a fresh checkout would meet."""
    monkeypatch.setattr(vllm._overlay, "UPSTREAM_ROOT", tmp_path)
    with pytest.raises(ImportError, match=r"upstream vLLM is not at .*make setup"):
        extend_package("vllm.core", [])


def test_the_root_package_has_upstreams_public_names() -> None:
    """Resolved in this package, so that isinstance works across it; any other is an AttributeError."""
    from vllm.outputs import CompletionOutput

    assert vllm.CompletionOutput is CompletionOutput
    assert "0.9.2+hooks" in vllm.__version__
    assert {"LLM", "SamplingParams", "__version__"} <= set(vllm.__all__)
    with pytest.raises(AttributeError, match="module 'vllm' has no attribute 'no_such_name'"):
        _ = vllm.no_such_name


def test_what_upstreams_root_package_imports_is_an_attribute() -> None:
    """`import vllm; vllm.envs.VLLM_USE_V1`; it sets variables that torch reads, whichever module comes next."""
    names = ["envs", "logger", "env_override"]
    is_imported = "'vllm.env_override' in sys.modules"
    printed = run("-c", f"import sys, vllm; print({is_imported}, *(getattr(vllm, name).__name__ for name in {names}))")
    assert printed.splitlines()[-1].split() == ["True", *(f"vllm.{name}" for name in names)]


def test_only_overlay_modules_import_upstream() -> None:
    """All other code of ours says vllm.*."""
    allowed = {OURS / "__init__.py", OURS / "_overlay.py"}
    allowed |= {OURS.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in overlay_modules()}
    allowed |= {OURS.joinpath(*name.split(".")[1:], "__init__.py") for name in our_packages()}
    ours = [path for path in OURS.rglob("*.py") if not path.is_relative_to(UPSTREAM_ROOT)]
    assert [path for path in ours if "vllm._upstream" in path.read_text() and path not in allowed] == []


def test_the_plug_in_notices_the_fork() -> None:
    """It needs a stock vLLM, and says so before it fails for another reason."""
    with pytest.raises(ImportError, match=r"the fork of this repository, .*, vllm\.LLM takes special_kwargs"):
        check_stock()


WITHOUT_HOOKS = expected_output(SURE_PROMPT).partition(SYNC)[0]
"""The first 16 tokens of the answer, which need no hooks."""


def complete(address: str, max_tokens: int) -> str:
    """The greedy completion of `SURE_PROMPT`, hook tokens included."""
    asked = {"max_tokens": max_tokens, "temperature": 0, "skip_special_tokens": False}
    body = {"model": str(MODEL_FOLDER), "prompt": SURE_PROMPT, **asked}
    text: str = httpx.post(f"{address}/v1/completions", json=body, timeout=120).json()["choices"][0]["text"]
    return text


@pytest.mark.model
@pytest.mark.parametrize(
    ("module", "option"),
    [("sequence_hooks.trace", "RUN"), full("vllm.entrypoints.openai.api_server", "--special-kwargs")],
)
def test_our_commands_explain_themselves(module: str, option: str) -> None:
    """Each describes its options with --help, without a model."""
    assert option in run("-m", module, "--help")


HOOKS = ["--special-kwargs", json.dumps(vars(hooks_for("sync")))]
STAGES = ["--pipeline-parallel-size", "2", "--distributed-executor-backend", "mp"]


@pytest.mark.model
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


def in_two_workers(fields: dict[str, str]) -> list[int]:
    """The answer to `SURE_PROMPT` of a program with two tensor-parallel workers, whose hooks have these fields."""
    printed = run(
        "-c",
        "if __name__ == '__main__':\n"
        f"    import json, sys; sys.path.insert(0, {str(MODEL_FOLDER.parent)!r})\n"
        "    from forkjoin_engine import GREEDY, hooks_for, open_engine\n"
        f"    hooks = hooks_for('sync', **{fields})\n"
        "    llm = open_engine(hooks, tensor_parallel_size=2, distributed_executor_backend='mp')\n"
        f"    completion = llm.generate([{SURE_PROMPT!r}], GREEDY, use_tqdm=False)[0].outputs[0]\n"
        "    print('told', json.dumps(list(completion.token_ids)))\n",
    )
    (told,) = (line.removeprefix("told ") for line in printed.splitlines() if line.startswith("told "))
    token_ids: list[int] = json.loads(told)
    return token_ids


@pytest.mark.model
@pytest.mark.floats
@pytest.mark.full
def test_worker_processes_inject_the_same_kv() -> None:
    """As one process does: each worker injects its own heads' KV; copies and positions are broadcast."""
    fields = {"child_merge_strategy": "kv_inject", "position_rule": "overlap"}
    params = GREEDY.clone()
    params.logprobs = NUM_LOGPROBS
    (output,) = open_engine(hooks_for("sync", **fields)).generate([SURE_PROMPT], params, use_tqdm=False)
    (expected,) = output.outputs
    is_same(in_two_workers(fields), expected.token_ids, logprobs_of(expected))


@pytest.mark.model
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

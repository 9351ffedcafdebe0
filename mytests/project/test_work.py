# SPDX-License-Identifier: Apache-2.0
"""What examples compare, and what runs tests by hand: a client does the work of hooks, two vLLMs agree."""

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from agreement import report
from forkjoin_engine import GREEDY, hooks_for, open_engine
from forkjoin_task import MODES, Mode
from forkjoin_work import BLOCK_SIZE, Counted, stretches, three_ways

from mytests.harness.environment import EXAMPLES
from mytests.harness.served import PROMPT
from mytests.harness.servers import SURE_PROMPT
from mytests.harness.sure import MIN_MARGIN, margin, sure_prompts
from vllm import LLM, SamplingParams

NUM_PROMPTS = 10


@pytest.fixture(scope="module")
def plain() -> LLM:
    return open_engine(None, enable_prefix_caching=True, block_size=BLOCK_SIZE)


@pytest.mark.model
@pytest.mark.floats
@pytest.mark.parametrize("mode", MODES)
def test_a_client_samples_the_same(mode: Mode, plain: LLM) -> None:
    """It asks for each stretch of a parent and for each child, with the context that they had."""
    outputs = open_engine(hooks_for(mode)).generate(sure_prompts(NUM_PROMPTS, 3, mode), GREEDY, use_tqdm=False)
    parts = [stretch for output in outputs for stretch in stretches(output)]
    pairs = [pair for part in parts for pair in ((part.context, part.sampled), *part.children)]
    prompts = [{"prompt_token_ids": context} for context, _ in pairs]
    params = [SamplingParams(temperature=0, max_tokens=len(sampled), ignore_eos=True) for _, sampled in pairs]
    answers = plain.generate(prompts, params, use_tqdm=False)
    assert [list(answer.outputs[0].token_ids) for answer in answers] == [sampled for _, sampled in pairs]
    assert len(pairs) > 4 * NUM_PROMPTS


@pytest.mark.model
@pytest.mark.floats
@pytest.mark.full
def test_work_is_counted(plain: LLM) -> None:
    """In sequence, each prompt and each token but the last; a client computes contexts again, and hooks do not."""
    hooked = open_engine(hooks_for("sync"))
    outputs = hooked.generate(sure_prompts(NUM_PROMPTS, 3, "sync"), GREEDY, use_tqdm=False)
    work = three_ways(Counted(hooked), Counted(plain), outputs)
    lengths = [len(output.prompt_token_ids) + len(output.outputs[0].token_ids) - 1 for output in outputs]
    assert work["in sequence"].tokens == sum(lengths)
    assert work["in sequence"].steps == max(len(output.outputs[0].token_ids) for output in outputs)
    assert work["with hooks"].tokens < work["by a client"].tokens
    assert work["with hooks"].steps < work["by a client"].steps < work["in sequence"].steps


@pytest.mark.model
@pytest.mark.parametrize("prompt", [PROMPT, SURE_PROMPT], ids=["promise", "sync"])
def test_those_of_servers_are_sure(prompt: str) -> None:
    """Their tests are in processes that load no model."""
    assert margin(prompt) > MIN_MARGIN


JOIN = {"position": 2, "num_merged": 1, "num_cut": 0, "num_context": 9, "num_prefill": 2, "error": None}
CHILD = {"position": 2, "prefix": [5], "tokens": [7, 2], "result": [7], "finish_reason": "stop", "children": []}
ANSWER: dict[str, Any] = {"prompt": "p", "tokens": [6, 3, 7], "children": [CHILD], "segments": [], "joins": [JOIN]}


def test_the_first_difference_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With the prompt and the place; a prompt or a mode that is missing is one, too."""
    other = deepcopy(ANSWER)
    assert report({"sync": [ANSWER]}, {"sync": [other]}) == 0
    other["children"][0]["tokens"][1] = 8
    assert report({"sync": [ANSWER, ANSWER]}, {"sync": [ANSWER, other]}) == 1
    assert "first difference: prompt 1, children[0].tokens[1]: 2 and 8" in capsys.readouterr().out
    for others in ({"sync": [ANSWER]}, {}):
        assert report({"sync": [ANSWER] * 2}, others) == 1


ROOT = Path(__file__).parents[2]
COMMANDS = """
tour
new sync_resume=manual
add r
step r=ab
run r=!a. r_child_0=B
resume r "hey"
run r=z
add s
step s=!
abort s
quit
show
"""
FAILING = '''
class TestSums:
    def test_a_sum(self):
        """Two and two are four."""
        assert 2 + 2 == 5
'''


def run_module(name: str, *arguments: str, commands: str = "") -> subprocess.CompletedProcess[str]:
    """What `python -m name` prints, with ``commands`` as its standard input."""
    return subprocess.run(
        [sys.executable, "-m", name, *arguments],
        input=commands,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )


def test_the_demo_shows_what_becomes_of_sequences_and_blocks() -> None:
    """A tour from spawn to merge; then a caller that resumes a sequence, an error in one line, and an abort."""
    result = run_module("mytests.harness.demo", commands=COMMANDS)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("free blocks: 16 of 16\n> quit\n")
    tour, others = result.stdout.split("> new sync_resume=manual")
    for piece in ("0* 1* 2*", "copy of block 2", "BLOCKED", "[BCD]z", "r prefills 4, samples z"):
        assert piece in tour
    for piece in ("r has 'ab'; give one character", "r waits for its caller: resume r", "[B][hey]z$"):
        assert piece in others
    assert others.count("FINISHED_ABORTED") == 2


DEMO = """
import os, pathlib, demo_screen
demo_screen.LOGS = pathlib.Path()
with demo_screen.screen("demo") as shown, shown.working("Work"):
    os.system("echo noise; echo more >&2")
    shown.end("trees", "make it")
    1 / 0
"""


def test_a_demo_keeps_noise_in_its_log(tmp_path: Path) -> None:
    """Also that of other processes. It ends with what was shown and comes next, unless it fails: then with its log."""
    environment = os.environ | {"PYTHONPATH": EXAMPLES}
    done = subprocess.run([sys.executable, "-c", DEMO], cwd=tmp_path, env=environment, capture_output=True, text=True)
    shown = "vLLM's own log: demo.log\nWork ...\nShown:  trees\nEngine: the fork of vLLM 0.9.2 (V0)\nNext:   make it\n"
    fault = "ZeroDivisionError: division by zero\nThe demo has failed. More is in demo.log\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, shown + fault, "")
    assert (tmp_path / "demo.log").read_text().startswith("noise\nmore\nTraceback")


def test_the_runner_tells_what_a_failing_test_states(tmp_path: Path) -> None:
    """With the assertion's message and the command that repeats it; the exit code is pytest's."""
    (tmp_path / "test_sums.py").write_text(FAILING)
    result = run_module("mytests", str(tmp_path / "test_sums.py"), f"--rootdir={tmp_path}")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "Two and two are four." in result.stdout
    assert "assert (2 + 2) == 5" in result.stdout
    assert "python -m pytest test_sums.py::TestSums::test_a_sum" in result.stdout

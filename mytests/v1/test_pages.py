# SPDX-License-Identifier: Apache-2.0
"""The commands of the pages that users follow: what they name exists, and they run as they stand, in their order."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from build_tools.language_model import LINKS, MODELS
from sequence_hooks.v1 import plugin
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser

ROOT = Path(__file__).resolve().parents[2]
PAGES = [f"{name}.md" for name in ("README", "docs/install", "docs/skeleton", "docs/live", "docs/your-model")]
PAGES += ["examples/forkjoin-language/README.md"]
MADE = {*(LINKS / name for name in MODELS), LINKS / "model"}
COMMAND = re.compile(r"((?:'[^']*'|#[^\n]*|[^'#\n])*)\n(.*)", flags=re.S)
"""It ends with its line, unless quotes are open; what it prints follows."""
INEXACT = re.compile("watch|train_notations")
SET_BY_TESTS = ("PYTHON", "VLLM_CPU", "OMP_")
SETTING = """
pip() { PIP_DRY_RUN=1 PIP_NO_DEPS=1 PIP_NO_BUILD_ISOLATION=0 command pip "$@"; }  # not what `make` calls
python() { command python "$@" $(case "$*" in *watch*) echo --once;; *notations*) echo --steps 20;; esac); }
make() { command make -o .venv-plugin/.ready -o .venv/.ready "$@"; }  # this environment
vllm() { command vllm "$@" >&2 & until curl -s localhost:8000/health; do kill -0 $!; sleep 1; done; }
stop() { kill $(jobs -p) 2>/dev/null && wait || true; }
trap stop EXIT
"""


def shown_on(page: str) -> list[tuple[str, str]]:
    """What follows each ``$``, and programs in Python as commands, with what the page says that they print."""
    found: list[tuple[str, str]] = []
    for block in (token for token in MarkdownIt().parse((ROOT / page).read_text()) if token.type == "fence"):
        first, *commands = re.split(r"^\$ ", block.content.replace("\\\n", ""), flags=re.M)
        if block.info:
            found.append((f"python -c {shlex.quote(first)}", ""))
        elif not commands and found and not found[-1][1]:
            found[-1] = (found[-1][0], first)
        found += [(match[1], match[2]) for match in map(COMMAND.fullmatch, commands) if match]
    return [(text, output) for text, output in found if output or not text.startswith("python -c")]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_server_is_given_exists(page: str) -> None:
    """Its options by its own parser, and its model in examples/, or where `make` puts one."""
    plugin.register()
    parser = FlexibleArgumentParser()  # type: ignore[no-untyped-call]
    cmd_init()[0].subparser_init(parser.add_subparsers())
    for command in (text for text, _ in shown_on(page) if text.startswith("vllm serve ")):
        model = ROOT / "examples" / parser.parse_args(shlex.split(command)[1:]).model_tag
        assert model.is_dir() or Path(os.path.normpath(model)) in MADE


@pytest.mark.model
@pytest.mark.full
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str) -> None:
    """In one shell, and print what it says, "..." being anything. A server runs as long as commands ask it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(SET_BY_TESTS)}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shown = shown_on(page)
    parts = [f"{'' if 'localhost' in text else 'stop'}\necho NEXT\n{text}\n" for text, _ in shown]
    command = ["bash", "-ec", SETTING + "".join(parts)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    for (text, output), printed in zip(shown, done.stdout.split("NEXT\n")[1:], strict=True):
        if output and not INEXACT.search(text):
            told = ".*".join(map(re.escape, output.strip().split("...")))
            assert re.search(told, printed) or json.dumps(output.strip())[1:-1] in printed

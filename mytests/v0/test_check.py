# SPDX-License-Identifier: Apache-2.0
"""``python -m sequence_hooks check``: what a model's files say about a configuration."""

import dataclasses
import json
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from sequence_hooks.__main__ import COMMANDS
from sequence_hooks.__main__ import main as run_command
from sequence_hooks.check.__main__ import main
from sequence_hooks.check.files import ModelFiles
from sequence_hooks.check.findings import findings
from sequence_hooks.config import SpecialKwargs

MODEL = "examples/forkjoin-tiny"
HOOKS = {"promise_token": "<promise>", "sync_token": "<sync>", "block_on": "sync", "child_prefix": "<child>"}


def checked(capsys: pytest.CaptureFixture[str], model: str = MODEL, **fields: Any) -> tuple[int, dict[str, str]]:
    """The exit status, and what each check says."""
    status = main([model, "--special-kwargs", json.dumps({**HOOKS, **fields} if "protocol" not in fields else fields)])
    lines = capsys.readouterr().out.splitlines()
    return status, {line.split()[0]: line.split(None, 1)[1] for line in lines}


def copied(folder: Path, file: str, **settings: Any) -> str:
    """A copy of the tiny model without weights, with other settings in one of its files."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(MODEL) / name, folder / name)
    (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **settings}))
    return str(folder)


def test_what_fits_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    """Each token with its id and its use; how many children run, if less than may be; texts need no token at all."""
    status, said = checked(capsys, child_stop=["<sync>", "no"])
    assert status == 0
    uses = (
        "promise '<promise>' (3); sync '<sync>' (4); children begin with '<child>'; children end at '<sync>' (4), 'no'"
    )
    assert said["tokens"] == f"ok     {uses}"
    assert said["limits"].endswith("depth 1, 16 children at once; contexts of 512 tokens, a child's prefix has up to 1")
    status, said = checked(capsys, "examples/forkjoin-threadweaver", protocol="pasta")
    assert (status, said["texts"]) == (0, "ok     all hook tokens are in the texts that clients get")
    assert said["fields"].startswith("ok     protocol pasta: handlers")


def test_the_page_shows_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """But for who knows the layers, which depends on the vLLM that is installed."""
    main(["examples/forkjoin-hpd", "--special-kwargs", '{"protocol": "hpd"}'])
    printed = capsys.readouterr().out.replace("by config.json alone", "by vLLM 0.32.0")
    assert printed in Path("docs/your-model.md").read_text()


@pytest.mark.parametrize(
    ("fields", "name", "message"),
    [
        ({"max_children": 0}, "fields", "max_children is 0; use an integer of at least 1"),
        ({"promise_token": "no such"}, "tokens", "promise_token has 'no such', which is"),
        ({"protocol": "npr"}, "tokens", "protocol 'npr' has the tag '<guideline>', which is 11 tokens"),
        ({"protocol": "pasta"}, "handlers", "special_kwargs: the hook '<sync/>' can never be sampled: no token"),
        ({"promise_token": None, "promise_token_id": 99}, "tokens", "99, which is not in the model's vocabulary"),
        ({"handlers": {"a": "mytests.v0.test_check.fails"}}, "handlers", "which failed when called with the tokenizer"),
        ({"trigger_by": "text", "promise_token": "<xro"}, "handlers", "hook '<xro' can never be sampled: the tokens"),
        ({"trigger_by": "text", "promise_token": "→"}, "handlers", "hook '→' can never be sampled: the tokens"),
        ({"trigger_by": "text", "promise_token": "a → b"}, "handlers", "hook 'a → b' can never be sampled: the tokens"),
        ({"child_prefix": "<child>" * 600}, "limits", "a child's prefix has up to 600"),
        ({"max_child_depth": 0}, "use", "max_child_depth is 0, so the promise token is an ordinary token"),
    ],
)
def test_what_does_not_fit_fails(
    capsys: pytest.CaptureFixture[str], fields: dict[str, Any], name: str, message: str
) -> None:
    """The exit status tells, and the line names what, and the way out."""
    status, said = checked(capsys, **fields)
    assert status == 1
    assert said[name].startswith("FAILS") and message in said[name]


@pytest.mark.parametrize("fields", [{"promise_token": "<x>"}, {"promise_token": "<x>", "trigger_by": "text"}])
@pytest.mark.parametrize(("is_special", "says"), [(True, "'<x>' (45)"), (False, "all hook tokens are in the texts")])
def test_a_token_may_be_added_as_a_special_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fields: dict[str, Any], is_special: bool, says: str
) -> None:
    """It is none of those with names, and is left out of texts like them."""
    copied(tmp_path, "config.json", vocab_size=46)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(["<x>"], special_tokens=is_special)
    tokenizer.save_pretrained(tmp_path)
    # As the engines decode.
    assert (tokenizer.decode([45], skip_special_tokens=True) == "") == is_special
    others = {"sync_token": None, "child_prefix": None, "block_on": "promise"}
    _, said = checked(capsys, str(tmp_path), **fields, **others)
    assert said["texts"].removeprefix("ok").lstrip().startswith(says)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "keeps the hook tokens of earlier answers"),
        ("{{ messages[0].content }}", "leaves '<promise>' (3), '<sync>' (4) of earlier answers out"),
        ("{{ nothing() }}", "the chat template cannot be rendered: UndefinedError"),
    ],
)
def test_a_chat_template_may_lose_tags(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, template: str, says: str
) -> None:
    """It says what becomes of those in earlier answers."""
    _, said = checked(capsys, copied(tmp_path, "tokenizer_config.json", chat_template=template))
    assert says in said["chat"]


def test_what_is_not_known_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Some models' files say no length, which is no limit then; a model that is missing is named."""
    files = dataclasses.replace(ModelFiles.of(MODEL, None, False), max_len=None)
    found = {each.name: each for each in findings(SpecialKwargs(promise_token_id=3), files)}
    assert found["limits"].fits and found["limits"].says.endswith("the model's length is unknown")
    status, said = checked(capsys, str(tmp_path))
    assert (status, list(said)) == (1, ["model"]) and str(tmp_path) in said["model"]


def test_commands_are_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is run with what follows its name."""
    ran: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: ran.append((name, sys.argv[1:])))
    for command in COMMANDS:
        monkeypatch.setattr(sys, "argv", ["sequence_hooks", command, "MODEL"])
        run_command()
    assert ran == [(module, ["MODEL"]) for module, _ in COMMANDS.values()]
    monkeypatch.setattr(sys, "argv", ["sequence_hooks", "nothing"])
    with pytest.raises(SystemExit):
        run_command()


def fails(tokenizer: Any) -> None:
    """A factory that raises."""
    raise RuntimeError("broken")

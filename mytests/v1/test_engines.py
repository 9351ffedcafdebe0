# SPDX-License-Identifier: Apache-2.0
"""``special_kwargs`` as an argument of upstream's engines, as on the fork, or as an option of its command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vllm
from mytests.harness.characters import PROMISE, SYNC
from mytests.harness.v1.configuration import MODEL
from sequence_hooks import SpecialKwargs
from sequence_hooks.v1 import LLM, AsyncLLM, plugin
from sequence_hooks.v1.settings import KEY, SCHEDULER, plain_fields, special_kwargs_of
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

FIELDS: dict[str, Any] = {"promise_token_id": PROMISE, "sync_token_id": SYNC}
HOOKS = SpecialKwargs(promise_token_id=PROMISE, sync_token_id=SYNC)
TEXTS = {"promise_token": "<promise>", "sync_token": "<sync>"}
LIGHT = """
import sys
import sequence_hooks.v1
print(sorted(name for name in sys.modules if name.split(".")[0] in ("sequence_hooks", "vllm", "torch")))
"""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What upstream's `LLM` gets; it starts nothing."""
    got: dict[str, Any] = {}

    def construct(self: Any, model: str, **kwargs: Any) -> None:
        got.update(model=model, **kwargs)

    monkeypatch.setattr(vllm.LLM, "__init__", construct)
    return got


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[VllmConfig]:
    """What an `AsyncLLM` is made with; it starts nothing."""
    got: list[VllmConfig] = []

    def construct(self: Any, vllm_config: VllmConfig, **kwargs: Any) -> None:
        got.append(vllm_config)

    monkeypatch.setattr(AsyncLLM, "__init__", construct)
    monkeypatch.setattr(AsyncLLM, "shutdown", lambda self: None)
    return got


def arguments(**more: Any) -> AsyncEngineArgs:
    """Those of the tiny model."""
    return AsyncEngineArgs(MODEL, dtype="float32", enforce_eager=True, **more)


def test_importing_the_package_loads_no_engine() -> None:
    """The entry point is in it, and an engine without hooks loads that."""
    done = subprocess.run([sys.executable, "-P", "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['sequence_hooks', 'sequence_hooks.v1']"


def test_upstreams_error_is_explained() -> None:
    """Its `LLM` knows nothing of hooks, and the page for troubles says which one does."""
    with pytest.raises(TypeError) as raised:
        vllm.LLM(MODEL, special_kwargs=FIELDS)
    assert f"`{raised.value}`" in (Path(__file__).parent.parent.parent / "docs" / "troubleshooting.md").read_text()


class TestLLM:
    @pytest.mark.parametrize("hooks", [HOOKS, FIELDS], ids=["object", "dict"])
    def test_the_hooks_are_an_argument(self, given: dict[str, Any], hooks: Any) -> None:
        """All others are upstream's, additional configuration included."""
        LLM(MODEL, special_kwargs=hooks, seed=3, additional_config={"of": "others"})
        additional = {"of": "others", KEY: FIELDS}
        assert given == {"model": MODEL, "seed": 3, "scheduler_cls": SCHEDULER, "additional_config": additional}

    def test_without_them_it_is_upstreams(self, given: dict[str, Any]) -> None:
        """As on the fork, None switches them off."""
        LLM(model=MODEL, special_kwargs=None, scheduler_cls="some.other")
        assert given == {"model": MODEL, "scheduler_cls": "some.other"}

    @pytest.mark.parametrize(
        ("fields", "arguments", "message"),
        [
            ({**FIELDS, "max_children": 0}, {}, "max_children is 0"),
            (FIELDS, {"scheduler_cls": "some.other"}, r"scheduler_cls is 'some\.other', .* leave it out"),
        ],
    )
    def test_a_bad_field_is_refused_before_anything_starts(
        self, given: dict[str, Any], fields: dict[str, Any], arguments: dict[str, Any], message: str
    ) -> None:
        """The error names it, and the way out."""
        with pytest.raises(ValueError, match=message):
            LLM(MODEL, special_kwargs=fields, **arguments)
        assert given == {}


class TestAsyncLLM:
    def test_arguments_or_a_configuration_and_hooks_make_an_engine(self, configs: list[VllmConfig]) -> None:
        """Tokens are looked up; what was given stays as it is, and makes another engine without hooks."""
        args, config = arguments(additional_config={"of": "others"}), arguments().create_engine_config()
        assert isinstance(AsyncLLM.from_engine_args(args, special_kwargs=TEXTS), AsyncLLM)
        AsyncLLM.from_vllm_config(config, special_kwargs=TEXTS)
        AsyncLLM.from_engine_args(args)
        AsyncLLM.from_vllm_config(vllm_config=config)
        by_arguments, by_configuration, *plain = configs
        hooks = special_kwargs_of(by_arguments)
        assert hooks is not None and hooks.promise_token_id is not None
        assert special_kwargs_of(by_configuration) == hooks
        assert by_arguments.additional_config["of"] == "others"  # type: ignore[index]
        assert {each.scheduler_config.scheduler_cls for each in configs[:2]} == {SCHEDULER}
        assert plain[1] is config and not config.additional_config
        assert [(special_kwargs_of(each), each.scheduler_config.scheduler_cls) for each in plain] == [(None, None)] * 2

    def test_what_cannot_work_is_refused(self, configs: list[VllmConfig]) -> None:
        """Whichever way it was asked for; another scheduler too."""
        config = arguments(enable_prefix_caching=False).create_engine_config()
        with pytest.raises(ValueError, match="enable_prefix_caching=False; leave it on"):
            AsyncLLM.from_vllm_config(config, special_kwargs=HOOKS)
        with pytest.raises(ValueError, match=r"scheduler_cls is 'some\.other'"):
            AsyncLLM.from_engine_args(arguments(scheduler_cls="some.other"), special_kwargs=HOOKS)
        assert configs == []


TINY = ["--model", MODEL]


class TestArguments:
    @pytest.mark.parametrize(
        "fields",
        [
            {"child_prefix_token_ids": ((4,), (5, 6)), "children_per_promise": 2},
            {"handlers": {7: "mytests.harness.handlers.Fork"}},
            {"child_sampling_params": {"max_tokens": 3}, "merge_separator": ""},
        ],
    )
    def test_what_is_carried_is_json(self, fields: dict[str, Any]) -> None:
        """Upstream hashes it, and sends it to other processes."""
        hooks = SpecialKwargs(**FIELDS, **fields)
        assert SpecialKwargs.of(json.loads(json.dumps(plain_fields(hooks)))) == hooks

    def test_complete_sampling_parameters_replace_all_fields(self) -> None:
        """They are carried as a mapping that names each."""
        params = SamplingParams(max_tokens=3, structured_outputs=StructuredOutputsParams(choice=["a"]))
        carried = plain_fields(SpecialKwargs(**FIELDS, child_sampling_params=params))["child_sampling_params"]
        assert (carried["max_tokens"], carried["temperature"]) == (3, 1.0)
        assert carried["structured_outputs"]["choice"] == ["a"]


class TestOption:
    @pytest.fixture
    def parser(self) -> FlexibleArgumentParser:
        """Upstream's parser of an engine's options."""
        plugin.register()
        parser: FlexibleArgumentParser = EngineArgs.add_cli_args(FlexibleArgumentParser())  # type: ignore[no-untyped-call]
        return parser

    @pytest.mark.parametrize("is_first", [True, False])
    def test_it_is_short_for_two_of_upstreams(self, parser: FlexibleArgumentParser, is_first: bool) -> None:
        """Other additional configuration stays if it comes before."""
        others = ["--additional-config", '{"of": "others"}'] if is_first else []
        args = EngineArgs.from_cli_args(parser.parse_args([*TINY, *others, "--special-kwargs", json.dumps(FIELDS)]))
        assert args.scheduler_cls == SCHEDULER
        assert args.additional_config == {**({"of": "others"} if is_first else {}), "special_kwargs": FIELDS}

    @pytest.mark.parametrize("form", ["json", "file", "dotted"])
    def test_it_has_several_forms(self, parser: FlexibleArgumentParser, form: str, tmp_path: Path) -> None:
        """A JSON object, a file that has one, or a field at a time."""
        fields = {"protocol": "npr", "max_children": 8}
        path = tmp_path / "hooks.json"
        path.write_text(json.dumps(fields))
        forms = {
            "json": ["--special-kwargs", json.dumps(fields)],
            "file": ["--special-kwargs", f"@{path}"],
            "dotted": ["--special-kwargs.protocol", "npr", "--special-kwargs.max_children", "8"],
        }
        args = EngineArgs.from_cli_args(parser.parse_args([*TINY, *forms[form]]))
        assert SpecialKwargs.of(args.additional_config["special_kwargs"]) == SpecialKwargs.of(fields)

    def test_help_says_what_each_field_means(
        self, parser: FlexibleArgumentParser, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """As the documentation does."""
        monkeypatch.setenv("COLUMNS", "100000")
        # The parser sets it for all of its class.
        monkeypatch.setattr(FlexibleArgumentParser, "_search_keyword", None)
        with pytest.raises(SystemExit):
            parser.parse_args(["--help=special-kwargs"])
        said = capsys.readouterr().out
        assert "child_context ('parent' | 'before_trigger' | 'none'; default 'parent'): What a child's context" in said

    def test_without_it_nothing_is_set(self, parser: FlexibleArgumentParser) -> None:
        """Hooks are off."""
        args = EngineArgs.from_cli_args(parser.parse_args(TINY))
        assert (args.scheduler_cls, args.additional_config) == (None, {})

    @pytest.mark.parametrize("value", ["{", "[]", '{"max_children": 0, "sync_token_id": 1}', '{"sync": 1}'])
    def test_a_bad_value_ends_the_command(
        self, parser: FlexibleArgumentParser, value: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With the usual exit status, and an error that names the field."""
        with pytest.raises(SystemExit) as raised:
            parser.parse_args(["--special-kwargs", value])
        assert raised.value.code == 2
        assert "special_kwargs: " in capsys.readouterr().err

    def test_registering_twice_changes_nothing(self) -> None:
        """Upstream may load plug-ins more than once."""
        plugin.register()
        before = EngineArgs.create_engine_config
        plugin.register()
        assert EngineArgs.create_engine_config is before

# SPDX-License-Identifier: Apache-2.0
"""How hooks are switched on: by arguments of the engine, or by an option of its command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from mytests.harness.characters import PROMISE, SYNC
from mytests.harness.v1.configuration import MODEL
from sequence_hooks import SpecialKwargs
from sequence_hooks.v1 import engine_args, plugin
from sequence_hooks.v1.settings import SCHEDULER, plain_fields
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

HOOKS = SpecialKwargs(promise_token_id=PROMISE, sync_token_id=SYNC)
TINY = ["--model", MODEL]
FIELDS: dict[str, Any] = {"promise_token_id": PROMISE, "sync_token_id": SYNC}


class TestArguments:
    def test_they_name_the_scheduler_and_the_fields(self) -> None:
        """Only fields that differ from their defaults are carried."""
        assert engine_args(HOOKS) == {"scheduler_cls": SCHEDULER, "additional_config": {"special_kwargs": FIELDS}}

    def test_other_arguments_are_kept(self) -> None:
        """So is what others have put into ``additional_config``."""
        made = engine_args(FIELDS, seed=3, additional_config={"of": "others"})
        assert (made["seed"], made["additional_config"]) == (3, {"of": "others", "special_kwargs": FIELDS})

    def test_another_scheduler_is_refused(self) -> None:
        """The error names it, and the way out."""
        with pytest.raises(ValueError, match=r"scheduler_cls is 'some.other', .* leave it out"):
            engine_args(HOOKS, scheduler_cls="some.other")

    def test_a_bad_field_is_refused(self) -> None:
        """At once, in the process of the caller."""
        with pytest.raises(ValueError, match="max_children is 0"):
            engine_args({**FIELDS, "max_children": 0})

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

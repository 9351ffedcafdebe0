# SPDX-License-Identifier: Apache-2.0
"""What V0 adds to `SpecialKwargs`: sampling parameters, its command line; `core/test_fields.py` has the fields."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm.config import SpecialKwargs
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.engine.child_overrides import sampling_fields
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.utils import FlexibleArgumentParser

JOIN = "mytests.harness.joins.shout"


class TestSamplingParams:
    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ({"temprature": 1}, "child_sampling_params is .*temprature"),
            ({"temperature": -1}, "correct it: temperature must be non-negative"),
            ({"n": 2, "temperature": 1}, "leave n at 1, and use children_per_promise"),
            ({"stop_token_ids": (5,)}, "child_sampling_params is .*; correct it: its types are wrong"),
            ("hot", "child_sampling_params is 'hot'; give a SamplingParams, or a dict"),
            ({"logits_processors": ["nope"]}, "correct it: special_kwargs: child_sampling_params has 'nope'; use"),
            ({"logits_processors": [{"qualname": "no.pe"}]}, "special_kwargs: child_sampling_params has 'no.pe', whic"),
            (PoolingParams(), "child_sampling_params is .*; give a SamplingParams, or a dict"),
            ({"guided_decoding": {"regex": "a", "choice": ["b"]}}, "correct it: .*guided"),
            ({"temperature": float("nan")}, "correct it: temperature is nan; use a finite number"),
            ({"_all_stop_token_ids": [1]}, "correct it: _all_stop_token_ids is set by the engine; leave it out"),
            ({"output_text_buffer_length": 9}, "output_text_buffer_length is set by the engine"),
            ({"logits_processors": ["a.b"]}, "has 'a.b', which cannot be imported"),
            ({"logits_processors": [{"args": [1]}]}, "has None; use the qualified name"),
            ({"logits_processors": [{"qualname": JOIN, "kwargs": {"x": 1}}]}, "correct it: TypeError: .*'x'"),
            ({"logits_processors": [7]}, "correct it: logits_processors is .*; give a list of functions"),
            (SamplingParams(max_tokens=2.5), "correct it: max_tokens is 2.5"),
        ],
    )
    def test_bad_sampling_params_are_refused(self, overrides: Any, message: str) -> None:
        """They are refused at start-up, and not when the first child is spawned."""
        with pytest.raises(ValueError, match=message):
            SpecialKwargs(sync_token_id=5, child_sampling_params=overrides)

    def test_logits_processors_by_name(self) -> None:
        """As in the server, a name is that of a function, or of what makes one, with its arguments."""
        given = [JOIN, {"qualname": "functools.partial", "args": [max, 1]}, min]
        made = sampling_fields({"logits_processors": given})["logits_processors"]
        assert (made[0].__name__, made[1].args, made[2]) == (JOIN.rpartition(".")[2], (1,), min)

    def test_a_sampling_params_object_is_hashable_too(self) -> None:
        """The sampling parameters are left out of the hash, but are compared."""
        assert SpecialKwargs(sync_token_id=5, child_sampling_params={"min_tokens": 20}).child_sampling_params
        params = (SamplingParams(temperature=temperature) for temperature in (1, 0))
        hot, cold = (SpecialKwargs(sync_token_id=5, child_sampling_params=each) for each in params)
        assert hash(hot) == hash(cold)
        assert hot != cold


def test_resolving_asks_the_models_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so only if a token is given by its text."""
    from mytests.harness.v0.configuration import config_of
    from vllm.engine import compatibility

    tokenizer = SimpleNamespace(get_vocab=lambda: {"<sync>": 7}, unk_token_id=0)
    group = SimpleNamespace(tokenizer=tokenizer)
    monkeypatch.setattr(compatibility, "init_tokenizer_from_configs", lambda *args: group)
    config = config_of(skip_tokenizer_init=False)
    assert compatibility.resolve(SpecialKwargs(sync_token="<sync>"), config).sync_token_id == 7
    with pytest.raises(ValueError, match="skip_tokenizer_init=True leaves nothing to look it up in; give its id"):
        compatibility.resolve(SpecialKwargs(sync_token="<sync>"), config_of(skip_tokenizer_init=True))


@pytest.mark.parametrize("args_cls", [EngineArgs, AsyncEngineArgs])
class TestCommandLine:
    @pytest.mark.parametrize("form", ["json", "file", "dotted"])
    def test_it_has_several_forms(
        self, args_cls: type[EngineArgs], form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A JSON object, a file that has one, or a field at a time; help says what each means. None has no hooks."""
        monkeypatch.setenv("COLUMNS", "100000")
        fields = {"protocol": "npr", "max_children": 8}
        path = tmp_path / "hooks.json"
        path.write_text(json.dumps(fields))
        forms = {
            "json": ["--special-kwargs", json.dumps(fields)],
            "file": ["--special-kwargs", f"@{path}"],
            "dotted": ["--special-kwargs.protocol", "npr", "--special-kwargs.max_children", "8"],
        }
        parser = args_cls.add_cli_args(FlexibleArgumentParser())
        assert args_cls.from_cli_args(parser.parse_args(forms[form])).special_kwargs == SpecialKwargs.of(fields)
        assert args_cls.from_cli_args(parser.parse_args([])).special_kwargs is None
        assert "default 'parent'): What a child's context" in parser.format_help()

    def test_a_bad_value_ends_the_command_with_the_reason(
        self, args_cls: type[EngineArgs], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Argparse prints what `SpecialKwargs` says."""
        parser = args_cls.add_cli_args(FlexibleArgumentParser())
        with pytest.raises(SystemExit):
            parser.parse_args(["--special-kwargs", '{"sync_tokenid": 3}'])
        assert "special_kwargs: no field sync_tokenid" in capsys.readouterr().err


def test_the_servers_own_options_alone_have_no_special_kwargs() -> None:
    """Upstream asks for them where the engine's stand already."""
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(), async_args_only=True)
    assert "special_kwargs" not in vars(parser.parse_args([]))

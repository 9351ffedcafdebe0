# SPDX-License-Identifier: Apache-2.0
"""``special_kwargs`` as an argument of upstream's engines, as on the fork."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vllm
from mytests.harness.characters import PROMISE, SYNC
from mytests.harness.v1.configuration import MODEL
from sequence_hooks import SpecialKwargs
from sequence_hooks.v1 import LLM, AsyncLLM
from sequence_hooks.v1.settings import KEY, SCHEDULER, special_kwargs_of
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs

FIELDS = {"promise_token_id": PROMISE, "sync_token_id": SYNC}
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

    def test_a_bad_field_is_refused_before_anything_starts(self, given: dict[str, Any]) -> None:
        """By name."""
        with pytest.raises(ValueError, match="max_children is 0"):
            LLM(MODEL, special_kwargs={**FIELDS, "max_children": 0})
        assert given == {}


class TestAsyncLLM:
    def test_arguments_and_hooks_make_an_engine(self, configs: list[VllmConfig]) -> None:
        """Tokens are looked up; the arguments can make another engine without hooks."""
        args = arguments(additional_config={"of": "others"})
        engine = AsyncLLM.from_engine_args(args, special_kwargs=TEXTS)
        AsyncLLM.from_engine_args(args)
        hooked, plain = configs
        assert isinstance(engine, AsyncLLM)
        hooks = special_kwargs_of(hooked)
        assert hooks is not None and hooks.promise_token_id is not None
        assert hooked.scheduler_config.scheduler_cls == SCHEDULER and hooked.additional_config["of"] == "others"  # type: ignore[index]
        assert special_kwargs_of(plain) is None and plain.scheduler_config.scheduler_cls is None

    def test_a_configuration_and_hooks_make_an_engine(self, configs: list[VllmConfig]) -> None:
        """The same hooks as from arguments; the configuration stays as it is."""
        config = arguments().create_engine_config()
        AsyncLLM.from_vllm_config(config, special_kwargs=TEXTS)
        AsyncLLM.from_vllm_config(vllm_config=config)
        AsyncLLM.from_engine_args(arguments(), special_kwargs=TEXTS)
        hooked, plain, expected = configs
        assert special_kwargs_of(hooked) == special_kwargs_of(expected)
        assert hooked.scheduler_config.scheduler_cls == SCHEDULER
        assert plain is config and plain.scheduler_config.scheduler_cls is None and not plain.additional_config

    def test_what_cannot_work_is_refused(self, configs: list[VllmConfig]) -> None:
        """Whichever way it was asked for; another scheduler too."""
        config = arguments(enable_prefix_caching=False).create_engine_config()
        with pytest.raises(ValueError, match="enable_prefix_caching=False; leave it on"):
            AsyncLLM.from_vllm_config(config, special_kwargs=HOOKS)
        with pytest.raises(ValueError, match=r"scheduler_cls is 'some\.other'"):
            AsyncLLM.from_engine_args(arguments(scheduler_cls="some.other"), special_kwargs=HOOKS)
        assert configs == []

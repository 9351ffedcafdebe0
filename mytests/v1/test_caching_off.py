# SPDX-License-Identifier: Apache-2.0
"""Engines whose prefix caching is switched off: children share KV, and requests do not."""

from typing import Any

import pytest
from forkjoin_engine import MODEL_FOLDER

from mytests.harness.surgical import HOOKS, SurgicalEngine, plan
from sequence_hooks.v1.settings import SCHEDULER, engine_args, has_private_caching
from vllm.engine.arg_utils import EngineArgs

PROMPT = "p" * 10


@pytest.mark.parametrize(("prefix_caching", "num_found"), [(True, 8), (False, 0)])
def test_a_request_finds_nothing_of_another(prefix_caching: bool, num_found: int) -> None:
    """Not even of an earlier one of the same name and prompt."""
    engine = SurgicalEngine(HOOKS, prefix_caching=prefix_caching)
    engine.add(prompt=PROMPT)
    engine.run(plan(r="!b", r_child_0="BC"))
    assert engine.num_cached(engine.add(prompt=PROMPT)) == num_found
    engine.abort("r")
    engine.run(plan())


def test_a_tree_finds_its_own() -> None:
    """A sequence that gave up its KV computes again what was in no full block."""
    engine = SurgicalEngine(HOOKS, prefix_caching=False)
    request, script = engine.add(prompt=PROMPT), plan(r="!b", r_child_0="BC")
    engine.run_until(lambda: bool(engine.blocked_with_kv()), script)
    engine.evict("r")
    assert engine.num_cached(request) == 8
    engine.run(script)


@pytest.mark.parametrize("switched_off", [{"enable_prefix_caching": False}, {"enable_chunked_prefill": False}])
def test_options_that_switch_it_off(switched_off: dict[str, Any]) -> None:
    """Upstream's own configuration has the caching that children need; the arguments stay as they were given."""
    hooks = engine_args({"promise_token_id": 3})
    arguments = EngineArgs(model=str(MODEL_FOLDER), max_model_len=512, **switched_off, **hooks)
    config = arguments.create_engine_config()
    assert config.scheduler_config.scheduler_cls == SCHEDULER
    assert config.cache_config.enable_prefix_caching
    assert has_private_caching(config) == ("enable_prefix_caching" in switched_off)
    assert {name: getattr(arguments, name) for name in switched_off} == switched_off

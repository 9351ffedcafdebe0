# SPDX-License-Identifier: Apache-2.0
"""The tiny fork-join model on the engine: its hooks, its sampling parameters, its answers.

The engine is the fork's or, where a current vLLM is installed with the plug-in, that one.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# The engine reads these when it is imported. The model is a few megabytes, and so is its KV cache; a second
# thread gains nothing for it, and loses much if other work runs on the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_USE_V1", "0")

from forkjoin_task import CHILD, EOS, MAX_TOKENS, MERGE_SEPARATOR, PROMISE, SYNC, Mode
from transformers import AutoTokenizer

from sequence_hooks import SpecialKwargs
from vllm import LLM, RequestOutput, SamplingParams
from vllm.engine.arg_utils import EngineArgs

IS_FORK = hasattr(EngineArgs, "special_kwargs")
"""Whether vLLM is the fork, which takes hooks as an argument of its own."""

if not IS_FORK:
    # The fork takes a list of cores for each worker; current releases bind threads to cores unless told not to.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

MODEL_FOLDER = Path(__file__).parent / "forkjoin-tiny"

GREEDY = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, skip_special_tokens=False)


def hooks_for(mode: Mode, **fields: Any) -> SpecialKwargs:
    """The hooks that the model was trained for; ``fields`` replace those of `SpecialKwargs`."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    promise, sync, child = tokenizer.convert_tokens_to_ids([PROMISE, SYNC, CHILD])
    defaults = {
        "promise_token_id": promise,
        "sync_token_id": sync,
        "block_on": mode,
        "child_prefix_token_ids": (child,),
        "merge_separator": MERGE_SEPARATOR,
    }
    return SpecialKwargs(**defaults | fields)


def open_engine(special_kwargs: SpecialKwargs | Mapping[str, Any] | None, **engine_args: Any) -> LLM:
    """An engine for the model, or for the one at the path ``model``; None runs it without hooks."""
    defaults = {
        "model": str(MODEL_FOLDER),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "disable_log_stats": True,
    }
    return _llm_class()(special_kwargs=special_kwargs, **defaults | engine_args)


def _llm_class() -> Any:
    if IS_FORK:
        return LLM
    from sequence_hooks import v1

    return v1.LLM


def answers(outputs: Sequence[RequestOutput]) -> list[str]:
    """The whole output of each request, hook tokens included, without the EOS."""
    return [output.outputs[0].text.removesuffix(EOS) for output in outputs]

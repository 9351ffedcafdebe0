# SPDX-License-Identifier: Apache-2.0
"""The surgical engine of the vLLM that is installed, which this module chooses, and what its tests need."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mytests.harness.characters import CHILD, EOS, PROMISE, SYNC, CharTokenizer, ids
from mytests.harness.hooks import HOOKS, SYNC_HOOKS, SpecialKwargs
from mytests.harness.installed import IS_V1
from mytests.harness.stepped import Sampling, finished, plan

if IS_V1:
    from mytests.harness.v1.surgical import SurgicalEngine
    from sequence_hooks.v1.core.children import ChildRequests as Children
    from sequence_hooks.v1.core.params import inherit
else:
    from mytests.harness.v0.surgical import SurgicalEngine
    from vllm.engine.child_params import inherit
    from vllm.engine.children import ChildSequences as Children

Prompts = dict[str, list[int]]
"""The prompts of sequences, by request id."""


def tree(text: str, *children: Any, name: str = "r") -> dict[str, str]:
    """What a sequence and its children sample, by request id; a child with children of its own is a tuple like this."""
    texts = {name: text}
    for number, child in enumerate(children):
        texts |= tree(*((child,) if isinstance(child, str) else child), name=f"{name}_child_{number}")
    return texts


@contextmanager
def begun(engine: Any, tokens: Any, until: Callable[[], bool], prompt: str = "prompt", **params: Any) -> Iterator[Any]:
    """A request "r" that has come to where ``until`` holds; after the block it ends, and nothing is left."""
    engine.add(prompt=prompt, **params)
    engine.run_until(until, tokens)
    yield tokens
    engine.run(tokens)
    engine.assert_empty()


def completed(engine: Any, prompt: str = "prompt", params: Any = None, **texts: str) -> Any:
    """The completion of a request "r" whose sequences sample the texts, after which nothing is left; see `plan`."""
    engine.add(prompt=prompt, **params or {})
    engine.run(plan(**texts))
    return finished(engine)


__all__ = [
    "CHILD",
    "EOS",
    "HOOKS",
    "PROMISE",
    "SYNC",
    "SYNC_HOOKS",
    "CharTokenizer",
    "Children",
    "Prompts",
    "Sampling",
    "SpecialKwargs",
    "SurgicalEngine",
    "begun",
    "completed",
    "finished",
    "ids",
    "inherit",
    "plan",
    "tree",
]

# SPDX-License-Identifier: Apache-2.0
"""The releases of vLLM that the plug-in works with, and all that differs between them.

The plug-in extends what upstream does not promise to keep. Each module here has the same names, and says what they
stand for in the releases that use it; `installed` has those of the vLLM that is installed. Everything else is the same
for all releases, and no other code asks for a version:

| name | |
| --- | --- |
| ``ReleaseScheduler`` | upstream's asynchronous scheduler, which admits requests that hold KV first |
| ``ReleaseRequestState`` | upstream's state of a request in the front end |
| ``unsupported`` | what an engine cannot have with hooks because of this release |
| ``add_logits_processor`` | gives the sampler of the second model runner another processor of logits, as the last one |
| ``completion_usage_type`` | the OpenAI server's class for details of completion tokens |
"""

import os

from sequence_hooks.text.messages import abbreviated

MODULES = {
    "0.28": "vllm_0_28",
    "0.29": "vllm_0_29",
    "0.30": "vllm_0_29",
    "0.31": "vllm_0_31",
    "0.32": "vllm_0_32",
    "0.33": "vllm_0_32",
}
"""The module of each tested release, by the first two numbers of its version; the newest one comes last."""

TESTED = tuple(MODULES)

ANYWAY = "SEQUENCE_HOOKS_ANY_VLLM"
"""The environment variable that lets an unknown release be tried, as if it were the newest one tested."""


def check_release(version: str) -> None:
    """Raise a `ValueError` if the plug-in is not tested with this ``version`` of vLLM, and the user does not insist."""
    if _release(version) in TESTED or os.environ.get(ANYWAY):
        return
    raise ValueError(
        f"special_kwargs: this is vLLM {abbreviated(version)}, and sequence hooks are tested with {', '.join(TESTED)}; "
        f"install one of these, or set {ANYWAY}=1 to try it anyway"
    )


def module_of(version: str) -> str:
    """The module of this package for a ``version`` of vLLM."""
    return MODULES.get(_release(version), MODULES[TESTED[-1]])


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])

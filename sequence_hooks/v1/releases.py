# SPDX-License-Identifier: Apache-2.0
"""The releases of vLLM that the plug-in is tested with. It extends what upstream does not promise to keep."""

import os

from sequence_hooks.shown import shortened

TESTED = ("0.32",)
"""By the first two numbers of their versions."""

ANYWAY = "SEQUENCE_HOOKS_ANY_VLLM"
"""The environment variable that lets an unknown release be tried."""


def check_release(version: str) -> None:
    """Raise a `ValueError` if the plug-in is not tested with this ``version`` of vLLM, and the user does not insist."""
    if ".".join(version.split(".")[:2]) in TESTED or os.environ.get(ANYWAY):
        return
    raise ValueError(
        f"special_kwargs: this is vLLM {shortened(version)}, and sequence hooks are tested with {', '.join(TESTED)}; "
        f"install one of these, or set {ANYWAY}=1 to try it anyway"
    )

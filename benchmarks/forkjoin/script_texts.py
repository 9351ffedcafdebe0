# SPDX-License-Identifier: Apache-2.0
"""Scripts as a request of a current vLLM carries them."""

import json
from dataclasses import asdict

from benchmarks.forkjoin.plans import Script

SCRIPT = "script"
"""The extra argument of a request that carries its script, as JSON if it comes over HTTP; its children inherit it."""


def as_text(script: Script) -> str:
    """The script as one of upstream's servers takes it in ``vllm_xargs``."""
    return json.dumps(asdict(script))

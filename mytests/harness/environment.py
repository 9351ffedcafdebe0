# SPDX-License-Identifier: Apache-2.0
"""The environment of the tests, to be imported before vllm: no network, no reports, a small KV cache, much patience.

One thread is enough for the tiny models, and is not slowed down by other processes on the machine.
"""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ["VLLM_RPC_TIMEOUT"] = "600000"
os.environ["VLLM_ENGINE_ITERATION_TIMEOUT_S"] = "600"

EXAMPLES = str(Path(__file__).parents[2] / "examples")
sys.path.insert(0, EXAMPLES)

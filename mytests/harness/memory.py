# SPDX-License-Identifier: Apache-2.0
"""What an action leaves in memory."""

import gc
import tracemalloc
from collections.abc import Callable


def bytes_left(action: Callable[[], object]) -> int:
    """The bytes that ``action`` allocated and that something still refers to, without cyclic garbage."""
    gc.collect()
    tracemalloc.start()
    try:
        action()
        gc.collect()
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return num_bytes

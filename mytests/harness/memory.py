# SPDX-License-Identifier: Apache-2.0
"""What an action leaves in memory."""

import gc
import tracemalloc
from collections.abc import Callable


def bytes_left(action: Callable[[], object]) -> int:
    """The bytes that ``action`` allocated and that something still refers to when it has ended.

    Without a collection on both sides the figure would contain whatever cyclic garbage has not been collected yet,
    which depends on all that the process did before.
    """
    gc.collect()
    tracemalloc.start()
    try:
        action()
        gc.collect()
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return num_bytes

# SPDX-License-Identifier: Apache-2.0
"""``python -m sequence_hooks.selfcheck MODEL``: hooks on your engine and model, checked against it without them."""

import os
import sys

if __name__ == "__main__":
    # vLLM reads these when it is imported; its log is not to mix with the report.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    # The package itself needs no vLLM, and is imported where there is none.
    from sequence_hooks.v1.stock import check_stock

    try:
        check_stock()
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    from sequence_hooks.v1.selfcheck.command import main

    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Upstream's command line, which knows the scripted model: ``python -m benchmarks.device.server serve ...``."""

import benchmarks.device.model  # noqa: F401  # Processes that upstream starts import this module again.
from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    main()

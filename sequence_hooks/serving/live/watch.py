# SPDX-License-Identifier: Apache-2.0
"""Shows in a terminal what runs on a server that has ``live_page=True``; ctrl + c ends it."""

import argparse
import os


def main() -> None:
    """Draw frames until the user ends it."""
    parser = argparse.ArgumentParser(prog="python -m sequence_hooks watch", description=__doc__)
    parser.add_argument("url", help="the server's address, such as http://localhost:8000")
    parser.add_argument("--api-key", default=os.environ.get("VLLM_API_KEY"), help="by default $VLLM_API_KEY")
    parser.add_argument(
        "--every", type=float, default=0.5, metavar="SECONDS", help="between two frames; 0.5 by default"
    )
    parser.add_argument("--once", action="store_true", help="print one frame")
    arguments = parser.parse_args()
    try:
        from sequence_hooks.serving.live.terminal import watch
    except ImportError as error:
        parser.error(f"{error}: pip install 'vllm-sequence-hooks[watch]', which has rich and httpx")
    watch(arguments.url, arguments.api_key, None if arguments.once else arguments.every)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""``python -m sequence_hooks COMMAND``: each command is a module that can be run by itself too."""

import argparse
import runpy
import sys

COMMANDS = {
    "check": ("sequence_hooks.check", "what a model's files say about a configuration, in seconds"),
    "selfcheck": ("sequence_hooks.selfcheck", "whether your engine computes with hooks what it computes without"),
    "trace": ("sequence_hooks.trace", "pictures of a recorded run"),
    "watch": ("sequence_hooks.serving.live.watch", "what runs on a server at this moment, in a terminal"),
}


def main() -> None:
    """Run the command that is named first, with all other arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m sequence_hooks",
        description="\n".join(f"{name:<10} {what}" for name, (_, what) in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS)
    module, _ = COMMANDS[parser.parse_args(sys.argv[1:2]).command]
    sys.argv[1:2] = []
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

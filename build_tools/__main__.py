# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools``: put upstream's built package into this checkout."""

import argparse
import sys
from pathlib import Path

from build_tools.commands import UPSTREAM_FOLDER, place_upstream
from build_tools.errors import SetupError
from build_tools.release import require_supported_python


def main() -> int:
    """Exit status; an error is one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m build_tools", description=__doc__)
    parser.add_argument(
        "--destination",
        type=Path,
        default=Path(__file__).parent.parent / UPSTREAM_FOLDER,
        help="where to put it (default: %(default)s)",
    )
    arguments = parser.parse_args()
    try:
        require_supported_python()
        place_upstream(arguments.destination)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

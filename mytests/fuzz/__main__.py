# SPDX-License-Identifier: Apache-2.0
"""``python -m mytests.fuzz``: random histories on the engine that is installed."""

import sys

from mytests.fuzz.fuzzing import main

if __name__ == "__main__":
    sys.exit(main())

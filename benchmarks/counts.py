# SPDX-License-Identifier: Apache-2.0
"""Numbers of rounds, requests and the like, as the benchmarks' command lines take them."""

import argparse


def positive(text: str) -> int:
    """The number that ``text`` stands for; argparse names the option in its error."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number

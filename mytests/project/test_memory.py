# SPDX-License-Identifier: Apache-2.0
"""The tests' measure of what an action leaves in memory does not depend on when garbage is collected."""

from mytests.harness.memory import bytes_left


def test_what_is_kept_counts_and_garbage_does_not() -> None:
    """A list that refers to itself stays until a collection finds it."""
    kept: list[bytes] = []

    def leave() -> None:
        garbage: list[object] = [bytearray(100_000)]
        garbage.append(garbage)
        kept.append(bytes(10_000))

    assert 10_000 <= bytes_left(leave) < 20_000

# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of a tree, as far as they are the same on every engine."""

import hashlib


def derive_seed(*parts: object) -> int:
    """A seed that depends on all ``parts``, the same in every process; from 0 to 2**63 - 1."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1

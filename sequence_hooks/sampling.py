# SPDX-License-Identifier: Apache-2.0
"""The part of a tree's sampling parameters that is the same on every engine."""

import hashlib


def derive_seed(*parts: object) -> int:
    """A seed that depends on all ``parts``, the same in every process; from 0 to 2**63 - 1."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1

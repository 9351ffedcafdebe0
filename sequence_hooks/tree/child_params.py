# SPDX-License-Identifier: Apache-2.0
"""The part of a tree's sampling parameters that is the same on every engine."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any


def derive_seed(*parts: object) -> int:
    """A seed that depends on all ``parts``, the same in every process; from 0 to 2**63 - 1."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def combined(configured: Any, own: Any, overlaid: Callable[[Any, Mapping[str, Any]], Any]) -> Any:
    """What replaces the parameters of a child's parent: ``own``, from its handler, over what is ``configured`` for all.

    Args:
        configured, own: None, complete parameters, or a mapping of some of their fields.
        overlaid: Returns complete parameters with some fields replaced.
    """
    if own is None:
        return configured
    if configured is None or not isinstance(own, Mapping):
        return own
    return {**configured, **own} if isinstance(configured, Mapping) else overlaid(configured, own)


def reconcile(fields: dict[str, Any], given: Mapping[str, Any], min_temperature: float) -> None:
    """Adjust inherited fields to the ``given`` ones where both together would be refused.

    Args:
        min_temperature: The engine raises lower ones to it, with a warning for each child if it is left to that.
    """
    most, least = fields["max_tokens"], fields["min_tokens"]
    if most is not None and least > most:
        fields.update({"max_tokens": least} if "min_tokens" in given else {"min_tokens": most})
    if fields["stop"] and not fields["detokenize"]:
        name, value = ("detokenize", True) if given.get("stop") else ("stop", [])
        fields[name] = value
    if 0 < fields["temperature"] < min_temperature:
        fields["temperature"] = min_temperature

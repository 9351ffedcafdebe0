# SPDX-License-Identifier: Apache-2.0
"""The part of a tree's sampling parameters that is the same on every engine."""

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sequence_hooks.text.messages import abbreviated


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


def check_one(params: Any) -> None:
    """Raise a `ValueError` for parameters of several completions."""
    if params.n != 1:
        raise ValueError(f"n is {abbreviated(params.n)}; leave n at 1, and use children_per_promise")


def replaced(params: Any, given: Mapping[str, Any], derived: Collection[str], min_temperature: float) -> dict[str, Any]:
    """All fields of ``params``, with the ``given`` ones; others are adjusted where both together would be refused.

    Args:
        derived: The fields that follow from the others, or that are the same for every child; they are left out.
        min_temperature: Lower temperatures are raised to this. The engine would do the same, but warn for each child.
    """
    names = [name for name in params.__struct_fields__ if not name.startswith("_") and name not in derived]
    fields = {name: getattr(params, name) for name in names} | dict(given)
    most, least = fields["max_tokens"], fields["min_tokens"]
    if most is not None and least > most:
        fields.update({"max_tokens": least} if "min_tokens" in given else {"min_tokens": most})
    if fields["stop"] and not fields["detokenize"]:
        name, value = ("detokenize", True) if given.get("stop") else ("stop", [])
        fields[name] = value
    if 0 < fields["temperature"] < min_temperature:
        fields["temperature"] = min_temperature
    return fields

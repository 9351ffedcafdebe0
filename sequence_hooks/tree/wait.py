# SPDX-License-Identifier: Apache-2.0
"""What a BLOCKED sequence waits for."""

from typing import Literal

import msgspec

WaitsFor = Literal["children", "caller"]
"""What a BLOCKED sequence waits for: its children alone, or also a caller."""


class Wait(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a BLOCKED sequence waits for. Children it does not name keep running; children it no longer needs are
    cancelled when it resumes."""

    waits_for: WaitsFor = "children"
    numbers: tuple[int, ...] | None = None
    """The numbers of the children that it waits for and whose results it gets; None for all unjoined children. The
    others keep running, and stay unjoined."""

    join_when: int | None = None
    """The sequence resumes when this many of them have finished with a result, or all have finished. It then gets that
    many results; the remaining children are cancelled. With 0 it gets none, and all of them are cancelled at once. None
    waits for all of them."""


ALL = Wait()
"""Waits for all unjoined children, and gets all of their results."""

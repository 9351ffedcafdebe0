# SPDX-License-Identifier: Apache-2.0
"""What a BLOCKED sequence waits for."""

from typing import Literal

import msgspec

WaitsFor = Literal["children", "caller"]
"""What a BLOCKED sequence waits for: its children alone, or also a caller."""


class Wait(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a BLOCKED sequence waits for; those children of its which are neither named nor needed run on, or are
    cancelled when it goes on."""

    waits_for: WaitsFor = "children"
    numbers: tuple[int, ...] | None = None
    """The numbers of the children that it waits for, whose results it gets; None for all that are unjoined. The others
    run on, and stay unjoined."""

    join_when: int | None = None
    """It goes on when so many of them have finished with a result, or all have finished. It then gets so many results,
    and the rest is cancelled: with 0 it gets none, and all of them are cancelled at once. None to get all."""


ALL = Wait()
"""It waits for all children that are unjoined, and gets all of their results."""

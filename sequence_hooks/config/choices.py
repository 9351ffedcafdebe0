# SPDX-License-Identifier: Apache-2.0
"""The values of fields of `SpecialKwargs` that are one of several words."""

from typing import Literal

TriggerBy = Literal["token", "text"]
BlockOn = Literal["promise", "sync", "never"]
ChildContext = Literal["parent", "before_trigger", "none"]
SyncResume = Literal["auto", "manual"]
BlockedKVPolicy = Literal["preserve", "swap", "discard", "auto"]
PositionRule = Literal["sequential", "overlap"]
UnjoinedAtEnd = Literal["join", "cancel"]
FlatLogprobs = Literal["allow", "warn", "refuse"]

# SPDX-License-Identifier: Apache-2.0
"""The hooks of most surgical tests."""

from dataclasses import replace

from mytests.harness.characters import PROMISE, SYNC
from mytests.harness.installed import IS_V1

if IS_V1:
    from sequence_hooks import SpecialKwargs
else:
    # V0's checks the sampling parameters of children, too.
    from vllm.config import SpecialKwargs

HOOKS = SpecialKwargs(sync_token_id=SYNC, promise_token_id=PROMISE)
SYNC_HOOKS = replace(HOOKS, block_on="sync")

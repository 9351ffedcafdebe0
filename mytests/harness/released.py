# SPDX-License-Identifier: Apache-2.0
"""What is left of a sequence whose context was released."""

from typing import Any

import pytest


def assert_released(branch: Any) -> None:
    """Nobody can read its context."""
    with pytest.raises(LookupError, match=r"context .*is not kept"):
        branch.sequence.prompt_token_ids[0]

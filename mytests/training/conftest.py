# SPDX-License-Identifier: Apache-2.0
"""An engine that ran in this process before may have switched gradients off for good."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    """Whatever ran before, a training step has gradients."""
    with torch.inference_mode(False), torch.enable_grad():
        yield

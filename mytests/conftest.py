# SPDX-License-Identifier: Apache-2.0
"""Loaded by pytest before any test module imports vllm."""

import mytests.environment  # noqa: F401

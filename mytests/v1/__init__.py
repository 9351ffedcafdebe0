# SPDX-License-Identifier: Apache-2.0
"""Tests of the plug-in for current vLLM. They run in its own environment, see docs/internals/testing.md."""

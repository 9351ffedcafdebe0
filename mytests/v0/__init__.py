# SPDX-License-Identifier: Apache-2.0
"""Tests of the fork alone, and of what it serves."""

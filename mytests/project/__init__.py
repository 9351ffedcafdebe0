# SPDX-License-Identifier: Apache-2.0
"""Tests of the repository itself: its documents, its imports, its set-up, its packages and its benchmarks."""

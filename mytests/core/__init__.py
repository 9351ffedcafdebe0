# SPDX-License-Identifier: Apache-2.0
"""Tests of `sequence_hooks` alone, with plain values: no engine, no torch. `make check-core` runs them so."""

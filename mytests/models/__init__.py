# SPDX-License-Identifier: Apache-2.0
"""Tests of both engines with a model in the process of the tests; what needs no model is in `mytests.rules`."""

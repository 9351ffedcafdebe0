# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/internals/semantics.md, on every engine: V0 in the fork's environment, V1 in the plug-in's.

The tests use what both surgical engines have, which `mytests.harness.surgical` has.
"""

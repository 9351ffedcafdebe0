# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/internals/semantics.md, on every engine, with what both have in `mytests.harness.surgical`."""

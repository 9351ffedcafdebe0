# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/semantics.md, tested on every engine: in the fork's environment on V0, in the plug-in's on V1.

The tests use what both surgical engines have, which `mytests.rules.engine` exports.
"""

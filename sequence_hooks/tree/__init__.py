# SPDX-License-Identifier: Apache-2.0
"""The trees of sequences, and the rules by which they fork, wait and join.

`rules` says what happens next, as functions from values to values, and `manager` owns what happened: only it and
`branch` write the state of a tree. It reads an engine's sequences through `sequence.HookedSequence`, and must not make,
queue, compute or free one, nor know of any engine, server or page.
"""

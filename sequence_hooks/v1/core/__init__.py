# SPDX-License-Identifier: Apache-2.0
"""What runs in the engine's process: the scheduler, and what it needs to carry out the rules.

It owns the queues and blocks of sequences in a tree, and the engine's `DependencyManager`. It must not detokenize for
callers, nor touch tensors: what a front end or a worker has to know travels to it as plain values.
"""

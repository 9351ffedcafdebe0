# SPDX-License-Identifier: Apache-2.0
"""Sequence hooks: what a sampled token can do beside being text.

`config` says which tokens, `handlers` what each of them asks for, `branch` holds the tree of a
request, `spawn` makes a child, `merge` turns finished children into tokens, `results` is what the
caller gets. They are carried out by the output processor and the scheduler (`vllm.core.hook_scheduler`).
"""

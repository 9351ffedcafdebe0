# SPDX-License-Identifier: Apache-2.0
"""Hooks on a stock, current vLLM against what its users would do instead."""

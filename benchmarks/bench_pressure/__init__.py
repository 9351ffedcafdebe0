# SPDX-License-Identifier: Apache-2.0
"""More load than the KV cache holds: how each `blocked_kv_policy` handles it, and how the engine without hooks does."""

# SPDX-License-Identifier: Apache-2.0
"""More load than the KV cache holds: what each `blocked_kv_policy` makes of it, and the engine without hooks."""

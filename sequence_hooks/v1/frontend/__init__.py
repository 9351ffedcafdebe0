# SPDX-License-Identifier: Apache-2.0
"""What runs where requests come in: it replays what the engine did to trees, and tells the callers."""

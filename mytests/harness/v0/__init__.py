# SPDX-License-Identifier: Apache-2.0
"""The engine of the fork."""

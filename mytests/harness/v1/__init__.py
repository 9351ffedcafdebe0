# SPDX-License-Identifier: Apache-2.0
"""The engine of a stock, current vLLM with the plug-in. Types are checked in its own environment."""

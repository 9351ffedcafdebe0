# SPDX-License-Identifier: Apache-2.0
"""Answers of a real chat model: points side by side against one after the other, and against a client's requests."""

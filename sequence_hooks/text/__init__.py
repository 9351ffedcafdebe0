# SPDX-License-Identifier: Apache-2.0
"""Texts and tokens: how a text is encoded, how one that goes on where others end, how one is spelled, and how values
look in messages. It knows no hooks.
"""

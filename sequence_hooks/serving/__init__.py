# SPDX-License-Identifier: Apache-2.0
"""What an OpenAI server's responses say about trees, whichever engine it serves."""

# SPDX-License-Identifier: Apache-2.0
"""KV of forked and joined sequences: what an injection copies and prefills, and who gives up KV under pressure."""

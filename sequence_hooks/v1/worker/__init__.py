# SPDX-License-Identifier: Apache-2.0
"""The part of the plug-in that runs beside the model, in upstream's workers.

It owns the copies of keys and values, the positions of glue, and what a sampler knows of earlier tokens. It must not
know trees: it does what a step's plain values say, slot by slot.
"""

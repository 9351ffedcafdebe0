# SPDX-License-Identifier: Apache-2.0
"""The part of the plug-in that runs beside the model, in upstream's workers."""

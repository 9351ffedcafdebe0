# SPDX-License-Identifier: Apache-2.0
"""How fast hooks are on a device, against what its users would do instead: ``python -m benchmarks.device``.

It needs a vLLM for the device, the plug-in, and this checkout; no weights, no network, and at most nine minutes.
"""

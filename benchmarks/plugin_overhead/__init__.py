# SPDX-License-Identifier: Apache-2.0
"""What the plug-in costs while no hook token is sampled: ``make bench-plugin-overhead``."""

# SPDX-License-Identifier: Apache-2.0
"""What runs in the engine's process: the scheduler, and what it needs to carry out the rules."""

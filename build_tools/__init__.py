# SPDX-License-Identifier: Apache-2.0
"""Set-up: fetches the pinned upstream release, builds it, and keeps it in the user's cache.

`python -m build_tools` puts the built tree at `vllm/_upstream`; `setup.py` uses the same code for wheels.
"""

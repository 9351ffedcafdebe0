# SPDX-License-Identifier: Apache-2.0
"""Setting up: fetch the pinned upstream release, build it, keep it in the user's cache.

`python -m build_tools` puts the built tree at `vllm/_upstream`; `setup.py` uses the same for wheels.
"""

# SPDX-License-Identifier: Apache-2.0
"""Pictures of a recorded run: ``python -m vllm.hooks.trace RUN.jsonl``, see docs/trace.md.

`reader` reads the file, `lanes` makes a lane of each sequence, `perfetto` and `page` draw them.
"""

# SPDX-License-Identifier: Apache-2.0
"""Recorded runs and their pictures: ``python -m sequence_hooks.trace RUN.jsonl``, see docs/trace.md.

`events` says what a recording is made of, `observer` who is told of events, and `recorder` writes them. `reader` reads
the file, `lanes` and `build` make a lane of each sequence, `perfetto` and `page` draw them.
"""

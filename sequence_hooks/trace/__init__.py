# SPDX-License-Identifier: Apache-2.0
"""Recorded runs and the traces drawn from them: ``python -m sequence_hooks.trace RUN.jsonl``, see docs/trace.md.

`events` defines what a recording consists of, `observer` is told of events, and `recorder` writes them; `reader` reads
the file, `lanes` and `build` make a lane for each sequence, and `perfetto` and `page` draw the lanes. An observer must
not change what it is told of, and no tree, rule or engine depends on a picture.
"""

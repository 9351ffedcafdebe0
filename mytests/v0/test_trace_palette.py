# SPDX-License-Identifier: Apache-2.0
"""The colors of traces: texts can be read on whatever they stand on."""

import re
from importlib.resources import files

import pytest

ENOUGH = 4.5
"""The contrast that WCAG 2 asks of small texts (level AA)."""

ON = [
    *[("ink", ground) for ground in ("page", "stripe", "band", "found")],
    *[("faint", ground) for ground in ("page", "stripe", "band", "found")],
    *[("on-prefill", "prefill"), ("on-decode", "decode"), ("decode", "page"), ("unshared", "page")],
]


def palettes() -> dict[str, dict[str, str]]:
    """The colors of each mode, by name; dark mode replaces some of those of light mode."""
    light, dark = (files("sequence_hooks.trace") / "palette.css").read_text().split("@media")
    colors = [dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in (light, dark)]
    return {"light": colors[0], "dark": colors[0] | colors[1]}


def luminance(color: str) -> float:
    """The relative luminance of WCAG 2."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), ON)
def test_texts_stand_out(text: str, ground: str, mode: str) -> None:
    """Labels, axes, and the texts in bars."""
    palette = palettes()[mode]
    low, high = sorted(luminance(palette[name]) for name in (text, ground))
    assert (high + 0.05) / (low + 0.05) >= ENOUGH

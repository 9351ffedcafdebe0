# SPDX-License-Identifier: Apache-2.0
"""The page at ``/live``: one document that loads nothing but the server's own routes."""

import re
from functools import cache
from importlib.resources import files

_SCRIPTS = ("api.js", "model.js", "lanes.js", "lists.js", "app.js")


@cache
def live_page() -> str:
    """The page as HTML. It has no data in it, so that it may be sent to whoever asks."""
    here = files(__package__)
    parts = {
        "palette": (files("sequence_hooks.trace") / "palette.css").read_text(),
        "style": (here / "page.css").read_text(),
        "script": "\n".join((here / name).read_text() for name in _SCRIPTS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], (here / "page.html").read_text())

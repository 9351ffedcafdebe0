# SPDX-License-Identifier: Apache-2.0
"""Full disks and folders that cannot be written to are reported in one line."""

import errno
import os
import re
import shutil
from pathlib import Path

import pytest

from build_tools.errors import SetupError, writing_to

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS), "/some/path")
COPIED = shutil.Error([("/from", "/to", "[Errno 28] No space left on device: '/to'")])


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FULL, "/a/cache cannot be written to: No space left on device; make room there, or name another folder"),
        (READ_ONLY, "/some/path cannot be written to: Read-only file system; make it writable, or name another"),
        (COPIED, "/to cannot be written to: No space left on device; make room there, or name another folder in X"),
    ],
)
def test_what_a_disk_refuses_is_one_line(error: OSError, line: str) -> None:
    """The line has the path, the reason and the way out."""
    with pytest.raises(SetupError, match=f"^{re.escape(line)}[^\n]*$"), writing_to(Path("/a/cache"), "X"):
        raise error

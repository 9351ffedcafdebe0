# SPDX-License-Identifier: Apache-2.0
"""Fetches a pinned file from the sources that pip is configured for.

``pip download`` is of no use for upstream's source archive: it builds the archive's metadata, finds
a version with a local part there, and refuses the file as inconsistent.
"""

import logging
import shutil
from pathlib import Path

import httpx2
from unearth import HashMismatchError, Link, PackageFinder, UnpackError

from build_tools.cache import BuildCache, published_folder
from build_tools.errors import SetupError
from build_tools.release import Artifact
from build_tools.sources import package_finder, pip_options

DOWNLOAD_ATTEMPTS = 3

# What unearth logs about a page is part of the one-line error that we raise.
logging.getLogger("unearth").addHandler(logging.NullHandler())


def fetch(artifact: Artifact, cache: BuildCache) -> Path:
    """The verified ``artifact`` in ``cache``; the index is asked only if the artifact is not there.

    Raises:
        SetupError: no source that can be reached offers it, or its hash is wrong.
    """
    final = cache.archives / artifact.sha256[:16]
    with cache.lock(artifact.sha256[:16]):
        if not final.exists():
            with published_folder(final) as staging:
                _download(artifact, package_finder(pip_options()), staging)
    return final / artifact.filename


def _download(artifact: Artifact, finder: PackageFinder, folder: Path) -> None:
    link = _locate(artifact, finder)
    print(f"fetching {artifact.filename}", flush=True)
    for attempts_left in reversed(range(DOWNLOAD_ATTEMPTS)):
        try:
            found = finder.download(link, folder, {"sha256": [artifact.sha256]})
            break
        except HashMismatchError as error:
            got = error.actual["sha256"]
            raise SetupError(f"{link.redacted} has sha256 {got}, but {artifact.sha256} is pinned") from None
        except (httpx2.HTTPError, UnpackError) as error:
            if not attempts_left:
                raise SetupError(f"{link.redacted} cannot be fetched: {_reason(error)}") from None
    # A local file is verified in place.
    if found.parent != folder:
        shutil.copyfile(found, folder / artifact.filename)


def _locate(artifact: Artifact, finder: PackageFinder) -> Link:
    """The first source's link to the file; a source that fails doesn't hide the next one."""
    failures = []
    sources = finder.sources
    for source in sources:
        finder.sources = [source]
        try:
            for package in finder.find_all_packages(artifact.project, allow_yanked=True):
                if package.link.filename == artifact.filename:
                    return package.link
            reason = "not there"
        except (httpx2.HTTPError, OSError) as error:
            reason = _reason(error)
        failures.append(f"{_redacted(source['url'])}: {reason}")
    looked_at = "; ".join(failures) or "pip is configured with no source"
    raise SetupError(f"{artifact.filename} is at none of pip's package sources ({looked_at})")


def _redacted(location: str) -> str:
    return Link(location).redacted if "://" in location else location


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

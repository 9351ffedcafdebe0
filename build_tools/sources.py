# SPDX-License-Identifier: Apache-2.0
"""The package sources that pip is configured for, as an ``unearth`` finder."""

import ast
import ssl
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from unearth import PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import Fetcher, PyPIClient

from build_tools.errors import SetupError

# pip's order of precedence, lowest first.
SECTIONS = ("global", "install", ":env:")
FALSE_WORDS = {"", "0", "false", "no", "off", "n", "f"}
DEFAULT_TIMEOUT_S = 15.0


def pip_options() -> dict[str, str]:
    """What pip's files and environment set for an install, by option name (``index-url``, ...).

    Raises:
        SetupError: this interpreter has no pip, or pip cannot read its configuration.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    listing = subprocess.run(command, capture_output=True, text=True)
    if listing.returncode:
        reason = (listing.stderr.strip().splitlines() or ["no message"])[-1]
        raise SetupError(f"pip cannot be asked for its package sources: {reason}")
    return parse_pip_options(listing.stdout.splitlines())


def parse_pip_options(lines: Iterable[str]) -> dict[str, str]:
    """The options in lines of ``section.name='value'``, each from the section with the highest precedence."""
    by_section: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in lines:
        key, _, value = line.partition("=")
        section, _, name = key.partition(".")
        if section in by_section:
            by_section[section][name] = str(ast.literal_eval(value))
    return {name: value for section in SECTIONS for name, value in by_section[section].items()}


def index_urls(options: Mapping[str, str]) -> list[str]:
    """The simple indexes that pip would read, in its order; none with ``no-index``."""
    if options.get("no-index", "").lower() not in FALSE_WORDS:
        return []
    # A finder without sources defaults to the public index, as pip does.
    public_index = PackageFinder().sources[0]["url"]
    return [options.get("index-url", public_index), *options.get("extra-index-url", "").split()]


def package_finder(options: Mapping[str, str]) -> PackageFinder:
    """A finder over pip's find-links and indexes, with pip's proxy, certificates and logins.

    It considers files of any platform: the wanted one is chosen by file name and hash.
    """
    urls = index_urls(options)
    finder = PackageFinder(_client(options, urls), ignore_compatibility=True)
    finder.sources = []
    for location in options.get("find-links", "").split():
        if "://" in location or Path(location).exists():
            finder.add_find_links(location)
    for url in urls:
        finder.add_index_url(url)
    return finder


def _client(options: Mapping[str, str], urls: list[str]) -> Fetcher:
    authority = options.get("cert")
    # pip lists PIP_DEFAULT_TIMEOUT as default-timeout.
    timeout = options.get("timeout") or options.get("default-timeout") or DEFAULT_TIMEOUT_S
    client = PyPIClient(
        trusted_hosts=options.get("trusted-host", "").split(),
        verify=ssl.create_default_context(cafile=authority) if authority else True,
        cert=options.get("client-cert"),
        proxy=options.get("proxy"),
        timeout=float(timeout),
        follow_redirects=True,
    )
    client.auth = MultiDomainBasicAuth(prompting=False, index_urls=urls)
    # This is unearth's own client, though unearth's protocol has another type of responses.
    return cast(Fetcher, client)

"""URLs of stores and of data: what is one, and which are refused because they hold a secret."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from fintrader.errors import ConfigError


def is_url(path: str | Path) -> bool:
    """Whether a path names a file system of its own, like s3://bucket/folder."""
    return "://" in str(path)


def check_url(url: str) -> str:
    """The URL without a slash at its end. Raises ConfigError for what is none, and for one that holds a secret."""
    if not is_url(url):
        raise ConfigError(f"store: {url!r} is no URL; give one like s3://bucket/runs or file:///mnt/shared/runs")
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query:
        raise ConfigError(
            f"store: the URL of {parts.scheme}://… holds more than a bucket and a path; credentials and options belong "
            "into the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS)"
        )
    return url.rstrip("/")


_SECRET_QUERY = re.compile(r"[?&][\w-]*(sig|token|key|secret|passw|credential)[\w-]*=", re.I)


def check_no_secret(path: str) -> str:
    """A path or URL of data as it is. Raises ConfigError for a URL that holds a password or a signed query.

    Less strict than `check_url`: `container@account` and `user@host` are names, and `?` may stand in a pattern.
    """
    if is_url(path) and (re.search(r"://[^/\s]*:[^/\s]*@", path) or _SECRET_QUERY.search(path)):
        raise ConfigError(
            f"the URL of {path.partition('://')[0]}://… holds a password or a key; settings are stored and shown, so "
            "credentials belong into the environment or into fsspec's configuration"
        )
    return path

"""Paths and URLs in settings: which are URLs, which are refused because they hold a secret, what opens them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator

from fintrader.errors import ConfigError, DataError, StorageError


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


def _without_secret(path: str) -> str:
    try:
        return check_no_secret(path)
    except ConfigError as error:
        raise ValueError(str(error)) from None


PathText = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),
    AfterValidator(_without_secret),
]
"""A setting: a local path or an fsspec URL without credentials; a `pathlib.Path` is taken too."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # pathlib makes one slash of two; C:/ is a drive


def refuse_url(path: Path | str, setting: str) -> None:
    """Raise DataError when a folder that must be local is a URL: as a path it would make a folder called `s3:`."""
    if _SCHEME.match(str(path)):
        raise DataError(
            f"{setting}: {path} is a URL, and this folder must be a local one; bars may lie at a URL (data.store), and "
            "so may runs and markets (store)"
        )


def base_name(path: str) -> str:
    """What to call a file in a message: its name without folders."""
    return path.rstrip("/").rpartition("/")[2]


_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path within it. Raises StorageError saying what to install or set."""
    import fsspec  # type: ignore[import-untyped]

    protocol = url.partition("://")[0]
    try:
        options = {} if protocol == "memory" else {"use_listings_cache": False}
        fs, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        if protocol in _EXTRAS:
            raise StorageError(f"{url}: install the extra: pip install 'fintrader[{_EXTRAS[protocol]}]'") from None
        raise StorageError(f"{url}: {error}; install the package it names") from None
    except ValueError as error:
        raise StorageError(f"{url}: {error}") from None
    return fs, str(path)

"""An S3 server on loopback, and the environment that points everything at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

SECRET = "secret-of-the-test"
BUCKET = "bucket"


@contextmanager
def s3(patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A boto3 client of a fresh server that holds one empty bucket."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    import boto3
    import s3fs

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }.items():
        patch.setenv(name, value)
    forget()
    try:
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
        for bucket in client.list_buckets()["Buckets"]:  # the server's state is the process's: earlier tests' buckets
            for item in client.list_objects_v2(Bucket=bucket["Name"]).get("Contents", []):
                client.delete_object(Bucket=bucket["Name"], Key=item["Key"])
            client.delete_bucket(Bucket=bucket["Name"])
        client.create_bucket(Bucket=BUCKET)
        yield client
    finally:
        server.stop()
        s3fs.S3FileSystem.clear_instance_cache()
        forget()


def forget() -> None:
    """As a new process: no client is kept from an earlier test."""
    import s3fs

    from fintrader.storage import mirror

    s3fs.S3FileSystem.clear_instance_cache()
    mirror._objects.cache_clear()

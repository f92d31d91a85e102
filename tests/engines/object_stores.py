"""Object stores on loopback, S3's and Google's, and the environment that points everything at
them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

SECRET = "secret-of-the-test"
BUCKET = "bucket"


@contextmanager
def place(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty place in a store of that kind: `file` (below `folder`), `memory`, `s3` or
    `gs`."""
    local = {"file": f"file://{folder}/place", "memory": f"memory://{uuid4().hex}/place"}
    with {"s3": s3, "gs": gcs}.get(kind, nullcontext)(patch):
        yield local.get(kind, f"{kind}://{BUCKET}/place")


@contextmanager
def s3(patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A boto3 client of a fresh server that holds one empty bucket."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    import boto3
    from moto.s3.models import s3_backends

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
        s3_backends.reset()  # the server's state is the process's: earlier tests' buckets
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
        client.create_bucket(Bucket=BUCKET)
        yield client
    finally:
        server.stop()
        forget()


@contextmanager
def gcs(patch: pytest.MonkeyPatch) -> Iterator[str]:
    """An emulator of Google's storage that holds one empty bucket; its address.

    The emulator does not know `ifGenerationMatch=0`, by which an object is created only where none
    stands. That is added here: 412 where one does, as
    https://cloud.google.com/storage/docs/request-preconditions says.
    """
    pytest.importorskip("gcsfs", reason="gcsfs is missing: make test-gcs")
    emulator = pytest.importorskip(
        "gcp_storage_emulator.server", reason="the emulator is missing: make test-gcs"
    )

    class Preconditions(emulator.RequestHandler):  # type: ignore[misc, name-defined]
        """One request after another, so that looking and writing are one step."""

        def do_POST(self) -> None:
            if "ifGenerationMatch=0" not in self.path:
                super().do_POST()
                return
            storage = self.storage

            class New:
                """The emulator's storage, for an object that must not be there yet."""

                def __getattr__(self, name: str) -> Any:
                    return getattr(storage, name)

                def create_file(self, bucket: str, name: str, *rest: Any, **more: Any) -> Any:
                    if any(one["name"] == name for one in storage.get_file_list(bucket, name)[0]):
                        raise FileExistsError(name)
                    return storage.create_file(bucket, name, *rest, **more)

            self.storage = New()
            try:
                super().do_POST()
            except FileExistsError:
                self.send_response(412)
                self.end_headers()
                self.wfile.write(b'{"error": {"code": 412, "message": "conditionNotMet"}}')
            finally:
                self.storage = storage

    patch.setattr(emulator, "RequestHandler", Preconditions)
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    address = f"http://127.0.0.1:{server._api._httpd.server_port}"
    patch.setenv("STORAGE_EMULATOR_HOST", address)
    patch.setenv("NO_PROXY", "127.0.0.1,localhost")
    patch.setenv("no_proxy", "127.0.0.1,localhost")
    forget()
    try:
        yield address
    finally:
        server.stop()
        forget()


def forget() -> None:
    """As a new process: no client is kept from an earlier test."""
    for module, name in (("s3fs", "S3FileSystem"), ("gcsfs", "GCSFileSystem")):
        if module in sys.modules:
            getattr(sys.modules[module], name).clear_instance_cache()

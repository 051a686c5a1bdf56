"""A server that speaks the protocol of S3, on this machine, and buckets on it."""

import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

_numbers = count()


@pytest.fixture(scope="session")
def object_server() -> Iterator[str]:
    """Address of the server."""
    from moto.server import ThreadedMotoServer  # takes a second to import

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # prints a line for each request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(object_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a new bucket; the environment leads to its server."""
    variables = {"ENDPOINT_URL": object_server, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}
    for name, value in (variables | {"REGION": "us-east-1", "DEFAULT_REGION": "us-east-1"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    name = f"bucket-{next(_numbers)}"
    client().create_bucket(Bucket=name)
    return f"s3://{name}"


def client() -> Any:
    """boto3's client of the server that the environment names."""
    import boto3

    return boto3.client("s3")


def put(url: str, content: bytes) -> None:
    """Write one object."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    client().put_object(Bucket=bucket, Key=key, Body=content)


def upload(folder: Path, url: str) -> str:
    """Copy all files of a folder; returns `url`."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    to = client()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            key = f"{prefix}/{file.relative_to(folder).as_posix()}".removeprefix("/")
            to.put_object(Bucket=bucket, Key=key, Body=file.read_bytes())
    return url


def objects(url: str) -> dict[str, bytes]:
    """Content of all objects below a URL, by their path there."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    to, start = client(), f"{prefix}/" if prefix else ""
    found = to.list_objects_v2(Bucket=bucket, Prefix=start).get("Contents", [])
    keys = [each["Key"] for each in found]
    return {key.removeprefix(start): to.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}

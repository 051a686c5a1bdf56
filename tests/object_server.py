"""An S3 server on this machine (moto), and a bucket in it for each test."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

_numbers = count()


@pytest.fixture(scope="session")
def object_server() -> Iterator[str]:
    """Address of the server."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(object_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty bucket. This process and those that it starts find the server in their environment."""
    variables = {
        "ENDPOINT_URL": object_server,
        "ACCESS_KEY_ID": "id",
        "SECRET_ACCESS_KEY": "key",
        "REGION": "us-east-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    url = f"s3://bucket-{next(_numbers)}"
    client().create_bucket(Bucket=url.removeprefix("s3://"))
    return url


def client() -> Any:
    """boto3's client of the server, for a second opinion."""
    return boto3.client("s3", region_name="us-east-1")

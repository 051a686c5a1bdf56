"""A proxy in front of a web server that delays, refuses or cuts answers."""

import http.client
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import pytest

Fault = Callable[[int, str], str]
"""(number of the request, path) -> "": no fault; "503" or another status: this answer; "cut": half of the body, then
the end of the connection; "short": half of the body, as if it were all; "away": no answer, and the end of the
connection; "weak": an answer without a strong ETag."""
_ERRORS = {
    "301": "PermanentRedirect", "403": "AccessDenied", "404": "NoSuchKey", "429": "TooManyRequests",
    "500": "InternalError", "503": "SlowDown",
}  # fmt: skip


class QuietHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024  # else connections that come together wait for seconds


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Address of a server that runs in threads of this process."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class FaultyProxy:
    """address: of the proxy. fault, delay_seconds: may be replaced at any time. paths: of all requests so far."""

    def __init__(self, upstream: str) -> None:
        self.upstream, self.address = upstream.removeprefix("http://"), ""
        self.fault: Fault = lambda number, path: ""
        self.delay_seconds = 0.0
        self.paths: list[str] = []
        self.numbers, self.lock = count(1), threading.Lock()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        with self.lock:
            fault = self.fault(next(self.numbers), request.path)
            self.paths.append(request.path)
        time.sleep(self.delay_seconds)
        if fault == "away":
            request.close_connection = True
            return
        if fault in _ERRORS:
            answer = f"<Error><Code>{_ERRORS[fault]}</Code><Message>{fault}</Message></Error>".encode()
            self._send(request, int(fault), [("Content-Type", "application/xml")], answer)
            return
        upstream = http.client.HTTPConnection(self.upstream)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "expect"}
        upstream.request(request.command, request.path, body, headers)
        response = upstream.getresponse()
        content = response.read()
        found = response.getheaders()
        if fault == "weak":
            found = [(name, f"W/{value}" if name.lower() == "etag" else value) for name, value in found]
            content = re.sub(rb"<ETag>.*?</ETag>", b"", content)
        self._send(request, response.status, found, content, fault)
        upstream.close()

    @staticmethod
    def _send(
        request: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], body: bytes, fault: str = ""
    ) -> None:
        request.send_response_only(status)
        sent = body[: len(body) // 2] if fault in ("cut", "short") else body
        length = len(sent if fault == "short" else body)
        for name, value in headers:
            if name.lower() == "content-length":
                length = length if body else int(value)  # of HEAD, which has no body
            elif name.lower() not in ("connection", "transfer-encoding"):
                request.send_header(name, value)
        request.send_header("Content-Length", str(length))
        request.end_headers()
        request.wfile.write(sent)
        request.close_connection = request.close_connection or fault == "cut"


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(upstream)

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            proxy.answer(self)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    with serving(Handler) as proxy.address:
        yield proxy


@pytest.fixture
def proxy(bucket: str, object_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy between this process and the server of `bucket`."""
    with faulty_proxy(object_server) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.address)
        yield made

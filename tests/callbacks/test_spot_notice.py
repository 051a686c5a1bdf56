"""Spot notices of a server on this machine."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from imagenet_opt.callbacks.preemption import SpotNotice

PATH = "/latest/meta-data/spot/instance-action"
NOTICE = b'{"action": "terminate", "time": "2030-01-01T00:00:00Z"}'
SECONDS = 60
"""To wait for what comes within milliseconds."""


class Metadata(ThreadingHTTPServer):
    """Gives `answers` one after the other, the last one for ever; `wants_token` as IMDSv2 does.

    Status 0: the bytes alone, which need not be HTTP.
    """

    daemon_threads = True

    def __init__(self, answers: list[tuple[int, bytes]], wants_token: bool) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.answers, self.wants_token = answers, wants_token
        self.url = f"http://127.0.0.1:{self.server_port}{PATH}"


class Answer(BaseHTTPRequestHandler):
    server: Metadata

    def do_PUT(self) -> None:
        assert self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.reply(200, b"secret")

    def do_GET(self) -> None:
        if self.server.wants_token and self.headers.get("X-aws-ec2-metadata-token") != "secret":
            return self.reply(401, b"")
        answers = self.server.answers
        status, body = answers.pop(0) if len(answers) > 1 else answers[0]
        if status:
            self.reply(status, body)
        else:
            self.wfile.write(body)

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator:
    with ExitStack() as servers:

        def start(*answers: tuple[int, bytes], wants_token: bool = False) -> Metadata:
            server = servers.enter_context(Metadata(list(answers), wants_token))
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            servers.callback(server.shutdown)
            return server

        yield start


def test_a_later_notice_is_reported_once(serve) -> None:
    server = serve((404, b""), (200, NOTICE), wants_token=True)
    notified = threading.Semaphore(0)
    SpotNotice(server.url, every_seconds=0.01, notify=notified.release)
    assert notified.acquire(timeout=SECONDS)
    for thread in threading.enumerate():
        if thread.name == "spot notice":
            thread.join(timeout=SECONDS)
    assert not notified.acquire(blocking=False)


def test_a_failing_server_is_warned_of_once_and_asked_again(serve, caplog: pytest.LogCaptureFixture) -> None:
    cut = (0, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
    odd = (0, b"no HTTP\r\n\r\n")
    server = serve((500, b""), (200, b"no json"), cut, odd, (200, b'{"action": "rebalance"}'), (200, NOTICE))
    notified = threading.Event()
    SpotNotice(server.url, every_seconds=0.01, notify=notified.set)
    assert notified.wait(SECONDS)
    (warning,) = caplog.messages
    assert server.url in warning and "500" in warning
    assert server.answers == [(200, NOTICE)]

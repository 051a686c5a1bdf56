"""Serves the live page on this machine alone."""

import hmac
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from plotly.offline import get_plotlyjs

from imagenet_opt.display.printable import printable
from imagenet_opt.errors import ConfigError
from imagenet_opt.watch.live_page import PLOTLY, LivePage

ADDRESS = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")
"""Names in a Host header that are answered. Another name is a page of another site whose name was pointed here (DNS
rebinding). The port may differ, as behind ssh -L."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_ONE_DAY = "private, max-age=86400"

Answer = tuple[str, str, Callable[[], bytes]]
"""Content type, Cache-Control, function that makes the content."""


class Server(ThreadingHTTPServer):
    """Answers GET for the page of a run, its version and plotly's JavaScript below a random token, and nothing else.

    port: 0 for a free port. Raises ConfigError if the port is in use or needs more rights.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        page, token = LivePage(folder), secrets.token_urlsafe(24)
        html = "text/html; charset=utf-8"
        self.answers: Mapping[str, Answer] = {
            f"/{token}/": (html, "no-store", page.page),
            f"/{token}/version": ("text/plain", "no-store", lambda: page.version().encode()),
            f"/{token}/{PLOTLY}": ("text/javascript; charset=utf-8", _ONE_DAY, lambda: get_plotlyjs().encode()),
        }
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as error:
            raise ConfigError(f"--port {port} cannot be used ({error.strerror}); choose another port") from error
        self.url = f"http://{ADDRESS}:{self.server_address[1]}/{token}/"


class Handler(BaseHTTPRequestHandler):
    """http.server itself refuses methods without a do_METHOD."""

    server: Server
    server_version, sys_version = "imagenet-opt", ""
    timeout = 10  # seconds for a silent client

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in HOSTS or (answer := self._answer()) is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, cache, make = answer
        content = make()
        self.send_response(HTTPStatus.OK)
        for name, value in {"Content-Type": kind, "Cache-Control": cache, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):  # the browser left
            self.wfile.write(content)

    def _answer(self) -> Answer | None:
        found = [
            answer
            for path, answer in self.server.answers.items()
            if hmac.compare_digest(path.encode(), self.path.encode())
        ]
        return found[0] if found else None

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing: a line would hold the token."""


def serve(folder: Path, port: int | None) -> None:
    """Serve the page of a run until Ctrl-C. Raises ConfigError if the port cannot be used."""
    with Server(folder, port or 0) as server, suppress(KeyboardInterrupt):
        print(printable(f"{folder}: {server.url}"), "Ctrl-C ends the watcher, not the run.", sep="\n", flush=True)
        server.serve_forever()

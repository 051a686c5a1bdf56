"""Polls for the notice that EC2 gives two minutes before it interrupts a spot instance.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

import json
import logging
import threading
from collections.abc import Callable
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import ProxyHandler, Request, build_opener

from imagenet_opt.errors import ConfigError

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 2.0
_OK, _NEEDS_TOKEN, _NO_NOTICE = 200, 401, 404
_ACTIONS = ("terminate", "stop", "hibernate")


class SpotNotice:
    """Polls `url` every `every_seconds` in a thread, and calls `notify` once when the server announces an interruption.

    The thread fetches a token where the server requires one (IMDSv2). A failing server is polled
    again after one warning.
    """

    def __init__(self, url: str, *, every_seconds: float, notify: Callable[[], None]) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"callbacks.preemption.spot_notice_url={url} must begin with http://, or be null")
        self.url, self.every_seconds, self.notify = url, every_seconds, notify
        self._headers: dict[str, str] = {}
        self._warned = False
        self._closed = threading.Event()
        self._open = build_opener(ProxyHandler({})).open  # a link-local address, which no proxy knows
        self._thread = threading.Thread(target=self._poll, daemon=True, name="spot notice")
        self._thread.start()

    def close(self) -> None:
        """Stop polling. The thread ends by itself, at the latest after its current request."""
        self._closed.set()

    def _poll(self) -> None:
        while not self._closed.is_set():
            try:
                if self._announced():
                    self.notify()
                    return
            except (OSError, ValueError, HTTPException) as error:
                if not self._warned:
                    log.warning(f"cannot read spot notices from {self.url} ({error}); trying again")
                self._warned = True
            self._closed.wait(self.every_seconds)

    def _announced(self) -> bool:
        status, body = self._ask(Request(self.url, headers=self._headers))
        if status == _NEEDS_TOKEN:
            self._headers = self._new_token()
            status, body = self._ask(Request(self.url, headers=self._headers))
        if status == _NO_NOTICE:
            return False
        if status != _OK:
            raise OSError(f"HTTP status {status}")
        notice = json.loads(body)
        return isinstance(notice, dict) and notice.get("action") in _ACTIONS

    def _new_token(self) -> dict[str, str]:
        address = urljoin(self.url, "/latest/api/token")
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
        status, body = self._ask(Request(address, method="PUT", headers=lifetime))
        if status != _OK:
            raise OSError(f"HTTP status {status} instead of a token")
        return {"X-aws-ec2-metadata-token": body.decode("ascii").strip()}

    def _ask(self, request: Request) -> tuple[int, bytes]:
        try:
            with self._open(request, timeout=_TIMEOUT_SECONDS) as response:
                return response.status, response.read(4096)
        except HTTPError as error:
            error.close()
            return error.code, b""

"""As much of a W&B server as wandb needs to begin a run online, and which fails on demand."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

VIEWER = {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
PROJECT = {"id": "p", "name": "imagenet-opt", "entity": {"id": "e", "name": "me"}}
RUN = {"id": "r", "name": "run", "displayName": "run", "config": "{}", "historyLineCount": 0, "project": PROJECT}
FILES = {"runID": "r", "uploadHeaders": [], "files": []}
ANSWERS: dict[str, Any] = {
    "Viewer": {"viewer": VIEWER},
    "UpsertBucket": {"upsertBucket": {"bucket": RUN}},
    "CreateRunFiles": {"createRunFiles": FILES},
}


class Server(ThreadingHTTPServer):
    """`num_rows`: requests that brought rows of metrics."""

    failing = False
    num_rows = 0
    daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.failing:
            return self.send_error(503)
        self.server.num_rows += self.path.endswith("file_stream")
        asked = json.loads(body).get("operationName") if "graphql" in self.path else None
        answer = json.dumps({"data": ANSWERS.get(asked, {})}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        return None

    def log_message(self, *_: object) -> None:
        """Nothing on the console."""


@contextmanager
def wandb_server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()

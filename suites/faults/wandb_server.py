"""As much of a W&B server as wandb needs to begin a run online, and which fails on demand."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.faulty_proxy import QuietHandler, serving

VIEWER = {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
PROJECT = {"id": "p", "name": "imagenet-opt", "entity": {"id": "e", "name": "me"}}
RUN = {"id": "r", "name": "run", "displayName": "run", "config": "{}", "historyLineCount": 0, "project": PROJECT}
FILES = {"runID": "r", "uploadHeaders": [], "files": []}
ANSWERS: dict[str, Any] = {
    "Viewer": {"viewer": VIEWER},
    "UpsertBucket": {"upsertBucket": {"bucket": RUN}},
    "CreateRunFiles": {"createRunFiles": FILES},
}


class Server:
    """num_rows: requests that brought rows of metrics. failing: may be set at any time."""

    url, failing, num_rows = "", False, 0

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if self.failing:
            return request.send_error(503)
        self.num_rows += request.path.endswith("file_stream")
        asked = json.loads(body).get("operationName") if "graphql" in request.path else None
        answer = json.dumps({"data": ANSWERS.get(asked, {})}).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)
        return None


@contextmanager
def wandb_server() -> Iterator[Server]:
    server = Server()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            server.answer(self)

    with serving(Handler) as server.url:
        yield server

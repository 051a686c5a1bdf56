"""The live page, asked over real connections."""

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.watch import live_page
from imagenet_opt.watch.server import Server
from tests.watch.runs import add_row, training, write_run


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(write_run(tmp_path / "mine"), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: Server, path: str, *, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    """Status and text of an answer. path: below the token, or from the root."""
    port = server.server_address[1]
    whole = path if path.startswith("/") else f"/{server.url.split('/')[3]}/{path}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, whole, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_only_the_address_with_the_token_is_answered(server: Server) -> None:
    assert ask(server, "")[0] == ask(server, "version")[0] == 200
    assert ask(server, "", host="localhost:9000")[0] == 200  # through ssh -L 9000:127.0.0.1:PORT
    assert ask(server, "plotly.js")[1].lstrip().startswith("/**")
    for path in ("/", "/version", "/wrong/", "metrics.csv", "../mine/metrics.csv", "?", "/%2e%2e/"):
        assert ask(server, path)[0] == 404, path
    for host in ("evil.example", "127.0.0.1.evil.example", "0.0.0.0", "[::1", " "):
        assert ask(server, "", host=host)[0] == 404, host
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert ask(server, "", method=method)[0] == 501, method


def test_the_server_listens_on_loopback_alone(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with Server(server.folder, 0) as other:
        assert len(other.url.split("/")[3]) >= 32 and other.url.split("/")[3] != server.url.split("/")[3]


def test_the_page_has_the_newest_row_and_the_end_of_the_run(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(live_page, "MOST_SHARE", float("inf"))
    folder = server.folder
    with training(folder):
        before, page = ask(server, "version")[1], ask(server, "")[1]
        assert "<b>2.710</b>" in page and "The run trains" in page and f'"{before}"' in page
        add_row(folder, 309, 0.4321)
        assert ask(server, "version")[1] != before
        assert "<b>0.432</b>" in ask(server, "")[1]
    assert '<b id="live-state">The run ended early' in ask(server, "")[1]


def test_the_page_is_built_again_only_for_new_rows_and_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "mine")
    now = 1000.0
    monkeypatch.setattr(live_page.time, "monotonic", lambda: now)
    monkeypatch.setattr(live_page.time, "thread_time", lambda: 0.0)
    page = live_page.LivePage(folder)
    first = page.page()
    add_row(folder, 309, 0.4321)
    assert page.page() is first, "too early"
    now += live_page.EVERY_SECONDS
    second = page.page()
    assert second is not first
    now += 10 * live_page.EVERY_SECONDS
    assert page.page() is second, "no new row"


def test_a_page_that_costs_two_seconds_waits_forty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, now, cpu = write_run(tmp_path / "mine"), 1000.0, iter((0.0, 2.0, 2.0, 4.0))
    monkeypatch.setattr(live_page.time, "monotonic", lambda: now)
    monkeypatch.setattr(live_page.time, "thread_time", lambda: next(cpu))
    page = live_page.LivePage(folder)
    first = page.page()
    add_row(folder, 309, 0.4321)
    now += 39
    assert page.page() is first
    now += 2
    assert page.page() is not first


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port} cannot be used .*; choose another port"):
            Server(write_run(tmp_path / "mine"), port)

"""A stand-in for the Hugging Face Hub on this machine: data sets and models from folders, parts of files, uploads of
models, a token, gated and private names."""

import base64
import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.faulty_proxy import QuietHandler, serving

COMMIT = "0" * 39 + "1"
TOKEN = "hf_right"


class Hub(QuietHandler):
    """Serves root/OWNER/NAME/...; names that begin with private or gated need the token. parts_left: parts of files
    that are served before the token is refused."""

    parts_left = 10**6

    def __init__(self, root: Path, *arguments: object) -> None:
        self.root = root
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        is_api = parts[0] == "api"
        if not is_api and parts[0] != "datasets":
            parts.insert(0, "models")
        if len(parts) < 3:
            return self.answer(404)
        owner, name, *rest = [*parts[1 + is_api :], ""]
        folder, token = self.root / owner / name, self.headers.get("authorization", f"Bearer {TOKEN[:3]}")
        if "authorization" in self.headers and token != f"Bearer {TOKEN}":
            self.answer(401, code="", message="Invalid credentials in Authorization header")
        elif not folder.is_dir() or (name.startswith("private") and token != f"Bearer {TOKEN}"):
            self.answer(401, code="RepoNotFound")
        elif rest[:1] in (["revision"], ["resolve"]) and rest[1] not in ("main", COMMIT):
            self.answer(404, code="RevisionNotFound")
        elif is_api and rest[:1] == ["tree"]:
            self.answer(200, json.dumps([self.about(file, folder) for file in files(folder)]).encode())
        elif is_api:
            names = [{"rfilename": file.relative_to(folder).as_posix()} for file in files(folder)]
            self.answer(200, json.dumps({"id": f"{owner}/{name}", "sha": COMMIT, "siblings": names}).encode())
        elif name.startswith("gated") and token != f"Bearer {TOKEN}":
            self.answer(403, code="GatedRepo")
        elif not (file := folder.joinpath(*rest[2:])).is_file():
            self.answer(404, code="EntryNotFound")
        elif "range" in self.headers:
            self.part(file.read_bytes())
        else:
            self.answer(200, file.read_bytes())

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Creates a repository, and takes a commit of files, which all come with their content."""
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, told = urlsplit(self.path).path, [json.loads(line) for line in content.splitlines()]
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            return self.answer(401, code="", message="Invalid username or password.")
        if path == "/api/repos/create":
            name = f"{told[0]['organization']}/{told[0]['name']}"
            (self.root / name).mkdir(parents=True, exist_ok=True)
            self.answer(200, json.dumps({"url": f"http://{self.headers['host']}/{name}"}).encode())
        elif "/preupload/" in path:
            modes = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in told[0]["files"]
            ]
            self.answer(200, json.dumps({"files": modes}).encode())
        elif "/commit/" in path:
            name = "/".join(path.split("/")[3:5])
            for file in (line["value"] for line in told if line["key"] == "file"):
                (self.root / name / file["path"]).write_bytes(base64.b64decode(file["content"]))
            url = f"http://{self.headers['host']}/{name}/commit/{COMMIT}"
            self.answer(200, json.dumps({"commitUrl": url, "commitOid": COMMIT}).encode())
        else:
            self.answer(200)  # /api/validate-yaml

    def part(self, content: bytes) -> None:
        Hub.parts_left -= 1
        first, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
        if Hub.parts_left < 0:
            self.answer(403)
        else:
            self.answer(206, content[int(first) : int(last or len(content)) + 1])

    def about(self, file: Path, folder: Path) -> dict[str, object]:
        content = file.read_bytes()
        path = file.relative_to(folder).as_posix()
        return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def answer(self, status: int, content: bytes = b"{}", *, code: str = "", message: str = "") -> None:
        self.send_response(status)
        headers = {
            "Content-Length": str(len(content)),
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
        }
        headers |= {"X-Error-Code": code} if code else {}
        headers |= {"X-Error-Message": message} if message else {}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose OWNER/NAME the Hub serves; no token is set."""
    root = tmp_path / "hub"
    with serving(partial(Hub, root)) as url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub_cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_ENDPOINT", url)  # for other processes
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub_home"))
        yield root

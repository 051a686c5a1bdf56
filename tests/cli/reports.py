"""The report command, and its page as text."""

from html.parser import HTMLParser
from pathlib import Path

from imagenet_opt.cli.main import run


class Page(HTMLParser):
    """Texts outside scripts, tags that load something, ids of plots and how many drawings each holds."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.loads: list[str] = []
        self.drawings: dict[str, int] = {}
        self.parts: list[str] = []
        self._tag = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._tag = tag
        self.parts += [str(found["id"]) for _ in (1,) if tag == "section"]
        self.loads += [value or "" for name, value in attrs if name in ("src", "srcset", "data")]
        self.loads += [found["href"] or "" for _ in (1,) if tag == "link"]
        if (found.get("id") or "").startswith("plot-"):
            self._plot = str(found["id"])
            self.drawings[self._plot] = 0
        if tag == "svg" and "main-svg" in (found.get("class") or ""):
            self.drawings[self._plot] += 1

    def handle_data(self, data: str) -> None:
        if self._tag not in ("script", "style"):
            self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def report(*arguments: object) -> Page:
    run("report", [str(argument) for argument in arguments])
    folder = Path(str(arguments[0]))
    return Page(((folder if folder.is_dir() else folder.parent) / "report.html").read_text())

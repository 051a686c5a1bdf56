"""The report command, and its page as text."""

from html.parser import HTMLParser
from pathlib import Path

from imagenet_opt.cli.main import run


class Page(HTMLParser):
    """Tags with their attributes, texts outside scripts, addresses that tags load, and the ids of the plots."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.loads: list[str] = []
        self.drawings: list[str] = []
        self._tag = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag, values = tag, {name: value or "" for name, value in attrs}
        self.elements += [(tag, name) for name in values] or [(tag, "")]
        loading = ("src", "srcset", "data", "href") if tag == "link" else ("src", "srcset", "data")
        self.loads += [value for name, value in values.items() if name in loading]
        if values.get("id", "").startswith("plot-"):
            self.drawings.append(values["id"])

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

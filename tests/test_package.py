"""What a release says of itself."""

import re
from pathlib import Path

import yaml

from imagenet_opt import __version__

ROOT = Path(__file__).parents[1]


def test_every_file_names_the_same_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and (cited, newest[1]) == (__version__, __version__)

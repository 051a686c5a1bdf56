import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagenet_opt.cli import apart, composition
from imagenet_opt.cli import overrides as cli_overrides
from imagenet_opt.cli.overrides import config_folder
from tests.processes import Forked


@pytest.fixture
def own_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration with a folder of experiments that may be written, without those that were found here."""
    conf = tmp_path / "conf"
    conf.mkdir()
    for entry in config_folder().iterdir():
        (conf / entry.name).symlink_to(entry) if entry.name != "experiment" else (conf / entry.name).mkdir()
    for file in (config_folder() / "experiment").glob("*.yaml"):
        if not file.name.startswith("tuned_"):
            (conf / "experiment" / file.name).write_text(file.read_text())
    for module in (cli_overrides, composition):  # which has it by name
        monkeypatch.setattr(module, "config_folder", lambda: conf)
    return conf


@pytest.fixture(autouse=True)
def forked_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of `call_apart` are forked from one that has imported torch, which saves seconds each."""
    quick = SimpleNamespace(**vars(subprocess) | {"Popen": Forked})
    monkeypatch.setattr(apart, "subprocess", quick)

"""Results of a command, written as an experiment."""

from pathlib import Path

import pytest

from imagenet_opt.cli.tune import main
from imagenet_opt.config.experiment_file import write_tuned
from imagenet_opt.errors import ConfigError


def test_an_experiment_replaces_the_one_before(own_conf: Path) -> None:
    file = write_tuned("tune", ("data.batch_size=4", "+model.micro_batch_size=2"), ["before", "a\nname \x1b[31m"])
    assert "micro_batch_size: 2" in file.read_text() and "\x1b" not in file.read_text()
    assert write_tuned("tune", ("data.batch_size=8",), ["after"]) == file and "batch_size: 8" in file.read_text()
    assert [path.name for path in file.parent.glob("*tuned_*")] == [file.name]


def test_an_unwritable_folder_is_refused_before_measurements(own_conf: Path) -> None:
    (own_conf / "experiment").rename(own_conf / "moved")
    with pytest.raises(ConfigError, match=r"conf/experiment cannot be written"):
        main(["data=demo"])

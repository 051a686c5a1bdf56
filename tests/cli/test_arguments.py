"""Mistakes on the command line are one line that says where help is."""

from pathlib import Path

import pytest

from imagenet_opt.cli.arguments import Parser, check_writable
from imagenet_opt.errors import ConfigError


def test_a_mistake_names_the_commands_help() -> None:
    parser = Parser("bench")
    parser.add_argument("--repeats", type=int)
    with pytest.raises(ConfigError, match="imagenet-opt bench --help"):
        parser.parse_args(["--repeats", "x"])
    with pytest.raises(ConfigError, match="unrecognized arguments: --rep"):
        parser.parse_args(["--rep", "3"])


def test_a_file_that_cannot_be_written_is_refused_before_it_is(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.json")
    for place in (tmp_path, tmp_path / "absent" / "found.json"):
        with pytest.raises(ConfigError, match=r"--json .* cannot be written"):
            check_writable(place)
    assert not list(tmp_path.iterdir())

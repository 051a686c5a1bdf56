"""`imagenet-opt init`: writes a small project that uses this package."""

import shlex
import shutil
from pathlib import Path

from imagenet_opt.cli.arguments import Parser
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.errors import ConfigError

HELP = """Write a small project of your own that uses this package: an experiment, a callback and a test.

imagenet-opt init FOLDER

FOLDER must not exist, or be empty. Then:

  cd FOLDER
  python train.py experiment=mine"""


def main(argv: list[str]) -> None:
    parser = Parser("init")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(argv).folder
    copy_project(folder)
    print(f"wrote {folder}; next: cd {shlex.quote(str(folder))} && python train.py experiment=mine")


def copy_project(folder: Path) -> None:
    """Copy the example project. Raises ConfigError for a folder that has files, or that cannot be written."""
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty; choose a new folder: imagenet-opt init FOLDER")
        shutil.copytree(_example(), folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror or error}; choose another folder") from error


def _example() -> Path:
    """The example project: inside the installed package, or in examples/ of a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "example_project"
    return inside if inside.is_dir() else config_folder().with_name("examples") / "project"

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
    """Copy the example project. Raises ConfigError for a folder that has files, or that cannot be written."""
    parser = Parser("init", overrides=False)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(argv).folder
    in_package = Path(__file__).parents[1] / "example_project"  # in a checkout it is in examples/
    example = in_package if in_package.is_dir() else config_folder().with_name("examples") / "project"
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty; choose a new folder: imagenet-opt init FOLDER")
        shutil.copytree(example, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror or error}; choose another folder") from error
    print(f"wrote {folder}; next: cd {shlex.quote(str(folder))} && python train.py experiment=mine")

"""Opens the data set that the overrides of a command line name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import train_program
from imagenet_opt.data.index.folder_index import FileIndex, root_of, split_folder
from imagenet_opt.data.index.index_cache import cache_folder
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.errors import ConfigError, DatasetNotFound
from imagenet_opt.object_storage import check_package
from imagenet_opt.processes import start_server

if TYPE_CHECKING:  # imports torch
    from imagenet_opt.data.options import LoaderOptions


@dataclass(frozen=True)
class DataSet:
    """root: folder or URL that contains the folders of both splits. folders: split (train, val) -> its folder."""

    root: Path | str
    folders: dict[str, str]
    cache: Path
    loading: "LoaderOptions"

    def open(self, split: str) -> FileIndex | ShardIndex:
        """The split's index; from the cache if the files did not change. Raises DataError."""
        from imagenet_opt.data.loader import open_index

        return open_index(self.root, self.folders[split], self.cache)


def compose_data(overrides: list[str]) -> DataSet:
    """The data set of data=folder with these overrides. Raises ConfigError, and Hydra's errors for overrides."""
    return data_of(composed(tuple(overrides)))


def check_folders(config: DictConfig) -> None:
    """Check that the folders exist, or that the package for a URL is installed, before imports that take seconds.
    Raises DatasetNotFound, ConfigError."""
    if "root" not in config.data:
        return
    root = root_of(str(config.data.root)) if config.data.root else None
    if isinstance(root, str):
        check_package(root, "data.root")
        start_server()  # its imports take as long as those of this process
        return
    try:
        for split in (config.data.train_folder, config.data.val_folder):
            split_folder(root, str(split))
    except DatasetNotFound as error:
        raise DatasetNotFound(f"{error}. No ImageNet here? {train_program()} data=demo") from None


def demo_of(config: DictConfig) -> DataSet:
    """The data set of data=demo, drawn if it does not exist yet. Raises ConfigError."""
    from imagenet_opt.data.datamodule import demo_data
    from imagenet_opt.data.demo import demo_folder

    options = _options(config, demo_data)
    cache = cache_folder(options.pop("cache_dir"))
    root = demo_folder(cache, options.pop("num_train"), options.pop("num_val"))
    return DataSet(root, {"train": "train", "val": "val"}, cache, _loading(options))


def data_of(config: DictConfig) -> DataSet:
    """The data set of data=folder. Raises ConfigError for other data."""
    if config.data.get("root") is None:
        raise ConfigError("data.root is missing; add data.root=FOLDER, which holds train/ and val/")
    from imagenet_opt.data.datamodule import folder_data

    options = _options(config, folder_data)
    root, cache = root_of(options.pop("root")), cache_folder(options.pop("cache_dir"))
    root = root.expanduser() if isinstance(root, Path) else str(root)
    folders = {split: options.pop(f"{split}_folder") for split in ("train", "val")}
    return DataSet(root, folders, cache, _loading(options))


def _options(config: DictConfig, target: Callable[..., Any]) -> dict[str, Any]:
    from imagenet_opt.config.build import check_types, plain

    options = {name: value for name, value in plain(config.data).items() if name != "_target_"}
    check_types(target, options, "data.")
    return options


def _loading(options: dict[str, Any]) -> "LoaderOptions":
    from imagenet_opt.config.build import check_types
    from imagenet_opt.data.options import LoaderOptions

    check_types(LoaderOptions, options, "data.")
    return LoaderOptions(**options)

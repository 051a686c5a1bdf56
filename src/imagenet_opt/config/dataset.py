"""Opens the data set of a configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from imagenet_opt.config.overrides import train_program
from imagenet_opt.data.index.index_cache import cache_folder
from imagenet_opt.data.index.layout import root_of
from imagenet_opt.data.index.open_index import find_source, open_index
from imagenet_opt.data.index.split import Split
from imagenet_opt.errors import ConfigError, DatasetNotFound
from imagenet_opt.object_storage import check_package, is_url
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

    def open(self, split: str) -> Split:
        """The split's index; from the cache if the files did not change. Raises DataError."""
        return open_index(self.root, self.folders[split], self.cache, cache_gb=self.loading.cache_gb)


def check_folders(config: DictConfig) -> None:
    """Check that the folders exist, or that the package for a URL is installed, before imports that take seconds.
    Raises DatasetNotFound, ConfigError."""
    if "root" not in config.data:
        return
    root = root_of(str(config.data.root)) if config.data.root else None
    if isinstance(root, str):
        if is_url(root):
            check_package(root, "data.root")
        start_server()  # its imports take as long as those of this process
        return
    try:
        for split in (config.data.train_folder, config.data.val_folder):
            find_source(root, str(split))
    except DatasetNotFound as error:
        if root is not None and root.expanduser().exists():
            raise
        raise DatasetNotFound(f"{error}. No ImageNet here? {train_program()} data=demo") from None


def data_of(config: DictConfig, *, or_demo: bool = False) -> DataSet:
    """The data set of data=folder. or_demo: that of data=demo too, which is drawn if it does not exist yet. Raises
    ConfigError for other data."""
    is_demo = or_demo and "root" not in config.data
    if not is_demo and not config.data.get("root"):
        raise ConfigError("data.root is missing; add data.root=FOLDER, which holds train/ and val/")
    from imagenet_opt.config.build import plain
    from imagenet_opt.data.demo import demo_folder
    from imagenet_opt.data.options import LoaderOptions

    options = {name: value for name, value in plain(config.data).items() if name != "_target_"}
    cache = cache_folder(options.pop("cache_dir"))
    root: Path | str
    if is_demo:
        root = demo_folder(cache, options.pop("num_train"), options.pop("num_val"))
        folders = {"train": "train", "val": "val"}
    else:
        place = root_of(options.pop("root"))
        root = place.expanduser() if isinstance(place, Path) else str(place)
        folders = {split: options.pop(f"{split}_folder") for split in ("train", "val")}
    return DataSet(root, folders, cache, LoaderOptions(**options))

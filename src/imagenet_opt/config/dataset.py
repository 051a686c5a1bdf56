"""Opens the data set of a configuration."""

from collections.abc import Sequence
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


def check_folders(config: DictConfig, *, splits: Sequence[str] = ("train", "val"), or_demo: bool = True) -> None:
    """Check that the folders of the splits exist, or that the package for a URL is installed, before imports that take
    seconds. or_demo: data=demo will do. Raises DatasetNotFound, ConfigError."""
    if not or_demo and not config.data.get("root"):
        raise ConfigError("data.root is missing; add data.root=FOLDER, which holds train/ and val/")
    if "root" not in config.data:
        return
    root = root_of(str(config.data.root)) if config.data.root else None
    if isinstance(root, str):
        if is_url(root):
            check_package(root, "data.root")
        return
    try:
        for split in splits:
            find_source(root, str(config.data[f"{split}_folder"]))
    except DatasetNotFound as error:
        if root is not None and root.expanduser().exists():
            raise
        raise DatasetNotFound(f"{error}. No ImageNet here? {train_program()} data=demo") from None


def data_of(config: DictConfig) -> DataSet:
    """The data set of data=folder, or of data=demo, which is drawn if it does not exist yet."""
    from imagenet_opt.config.build import plain
    from imagenet_opt.data.demo import demo_folder
    from imagenet_opt.data.options import LoaderOptions

    options = {name: value for name, value in plain(config.data).items() if name != "_target_"}
    cache = cache_folder(options.pop("cache_dir"))
    root: Path | str
    if "root" not in options:
        root = demo_folder(cache, options.pop("num_train"), options.pop("num_val"))
        folders = {"train": "train", "val": "val"}
    else:
        place = root_of(options.pop("root"))
        root = place.expanduser() if isinstance(place, Path) else str(place)
        folders = {split: options.pop(f"{split}_folder") for split in ("train", "val")}
    return DataSet(root, folders, cache, LoaderOptions(**options))

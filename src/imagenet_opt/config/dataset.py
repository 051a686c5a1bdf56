"""The data set that overrides on a command line name, as indexes."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagenet_opt.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from imagenet_opt.data.index.folder_index import FileIndex
    from imagenet_opt.data.index.shard_index import ShardIndex
    from imagenet_opt.data.options import Loading


@dataclass(frozen=True)
class DataSet:
    """root holds a folder for each of `folders`, by the split's name: train and val."""

    root: Path
    folders: dict[str, str]
    cache: Path
    loading: "Loading"

    def open(self, split: str) -> "FileIndex | ShardIndex":
        """The split's index, from the cache where nothing changed. Raises DataError."""
        from imagenet_opt.data.loader import open_index

        return open_index(self.root, self.folders[split], self.cache)


def compose_data(overrides: list[str]) -> DataSet:
    """Raises ConfigError, also for data that is not data=folder, and what Hydra raises for overrides."""
    from imagenet_opt.config.compose import composed

    return data_of(composed(tuple(overrides)))


def data_of(config: "DictConfig") -> DataSet:
    """Raises ConfigError, also for data that is not data=folder."""
    from omegaconf import OmegaConf

    if config.data.get("root") is None:
        raise ConfigError("data.root is missing; say data.root=FOLDER, which holds train/ and val/")

    from imagenet_opt.config.build import check_types
    from imagenet_opt.data.datamodule import cache_folder, folder_data
    from imagenet_opt.data.options import Loading

    options = OmegaConf.to_container(config.data, resolve=True)
    assert isinstance(options, dict)
    own = {str(key): value for key, value in options.items() if key != "_target_"}
    check_types(folder_data, own, "data.")
    root, cache = Path(own.pop("root")).expanduser(), cache_folder(own.pop("cache_dir"))
    folders = {split: own.pop(f"{split}_folder") for split in ("train", "val")}
    check_types(Loading, own, "data.")
    return DataSet(root, folders, cache, Loading(**own))

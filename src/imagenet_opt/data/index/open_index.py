"""Opens a split, whatever its data are: finds what lies there, and asks the source of such data."""

from pathlib import Path

from imagenet_opt.data.index.flat_folder import open_flat
from imagenet_opt.data.index.folder_index import open_split
from imagenet_opt.data.index.layout import list_of_classes, split_folder, split_url
from imagenet_opt.data.index.object_index import open_objects
from imagenet_opt.data.index.object_shards import open_object_shards
from imagenet_opt.data.index.shard_index import is_packed, open_shards
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.index.tar_index import find_tars, open_tars
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.errors import StorageFailed
from imagenet_opt.object_storage import connection_remedy


def open_index(root: Path | str | None, split: str, cache_dir: Path, *, cache_gb: float | None = 0.0) -> Split:
    """Open `root`/`split`: a pack, tars, a folder per class, or images with a list of their classes.

    root: a folder, or the URL of objects. cache_gb: data.cache_gb; tars below a URL are read whole once, and
    then fill the local cache. Raises DataError, ConfigError.
    """
    if isinstance(root, str):
        url = split_url(root, split)
        try:
            return open_object_shards(url, cache_dir) or open_objects(url, cache_dir, cache_gb)
        except OSError as error:
            raise StorageFailed(
                f"cannot read {url} (data.root): {error.strerror or error}; {connection_remedy(url)}"
            ) from error
    if tars := find_tars(root, split):
        return open_tars(tars, cache_dir)
    folder = split_folder(root, split)
    if root is not None and folder != (root.expanduser() / split).resolve():
        tell_once(f"{split}/ of data.root={root} is {folder}")
    if is_packed(folder):
        return open_shards(folder)
    if list_ := list_of_classes(folder):
        return open_flat(folder, list_)
    return open_split(root, split, cache_dir)

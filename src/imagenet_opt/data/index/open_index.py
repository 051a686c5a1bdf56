"""Opens a split, whatever its data are: finds what lies there, and asks the source of such data."""

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

from imagenet_opt.data.index.flat_folder import open_flat
from imagenet_opt.data.index.folder_index import open_split
from imagenet_opt.data.index.layout import Root, list_of_flat, split_folder, split_url
from imagenet_opt.data.index.parquet_index import hub_files, open_parquet, parquet_files
from imagenet_opt.data.index.shard_index import is_packed, open_shards
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.index.tar_index import find_tars, open_tars
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.errors import DataError, StorageFailed
from imagenet_opt.object_storage import connection_remedy, is_hub


def open_index(
    root: Path | str | None, split: str, cache_dir: Path, *, cache_gb: float | None = 0.0, to_pack: bool = False
) -> Split:
    """Open `root`/`split`: a pack, tars, Parquet files, a folder per class, or images with a list of their classes.

    root: a folder, or the URL of objects or of a data set of the Hub. cache_gb: data.cache_gb; tars below a URL are
    read whole once, and then fill the local cache. to_pack: images may be compressed together, which only `imagenet-opt
    pack` reads. Raises DataError, ConfigError.
    """
    if is_hub(root):
        files, codec = hub_files(str(root), split)
        _check_codec(codec, root, to_pack)
        found = open_parquet(files, cache_dir)
    elif isinstance(root, str):
        found = _open_objects(split_url(root, split), cache_dir, cache_gb)
    else:
        found = find_source(root, split)(cache_dir)
    _check_codec(found.codec, root, to_pack)
    return found


def find_source(root: Path | None, split: str) -> Callable[[Path], Split]:
    """What opens `root`/`split`, by the files that lie there; called with the cache folder. Raises DatasetNotFound."""
    if root is not None:
        if files := parquet_files(found := Root(str(root.expanduser().resolve())), split):
            return partial(open_parquet, files)
        if tars := find_tars(found, split):
            return partial(open_tars, tars)
    folder = split_folder(root, split)
    if root is not None and folder != (root.expanduser() / split).resolve():
        tell_once(f"{split}/ of data.root={root} is {folder}")
    if is_packed(folder):
        return lambda cache_dir: open_shards(folder)
    if list_ := list_of_flat(folder):
        return lambda cache_dir: open_flat(folder, list_)
    return partial(open_split, folder)


def _open_objects(url: str, cache_dir: Path, cache_gb: float | None) -> Split:
    from imagenet_opt.data.index.object_index import open_objects  # imports torch
    from imagenet_opt.data.index.object_shards import open_object_shards

    try:
        return open_object_shards(url, cache_dir) or open_objects(url, cache_dir, cache_gb)
    except OSError as error:
        raise StorageFailed(
            f"cannot read {url} (data.root): {error.strerror or error}; {connection_remedy(url)}"
        ) from error


def _check_codec(codec: str, root: Path | str | None, to_pack: bool) -> None:
    """Raise DataError, unless single images can be read or are not needed."""
    if codec and not to_pack:
        pack = shlex.join(["imagenet-opt", "pack", f"data.root={root}", "out=PACKED"])
        raise DataError(
            f"the images of {root} are compressed together ({codec}), so that each read would decompress many "
            f"(data.root); pack them: {pack}, then data.root=PACKED"
        )

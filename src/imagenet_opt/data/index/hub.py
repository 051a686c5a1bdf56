"""Data sets on the Hugging Face Hub: hf://datasets/OWNER/NAME[@REVISION][/FOLDER].

Parquet files with uncompressed images are downloaded into the cache of huggingface_hub, which other programs share, and
read there. Others, which only a pack reads, are read over the network.
"""

import glob
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from imagenet_opt.data.index.layout import Root
from imagenet_opt.data.index.parquet_index import CARD, ParquetFiles, codec_of, names_of_split, parquet_files
from imagenet_opt.data.storage.remote_file import explained
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.errors import ConfigError, DatasetNotFound

_URL = re.compile(
    r"hf://datasets/(?P<repo_id>[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[^/@]+))?(?:/(?P<folder>.+?))?/?"
)
_CONVERTED = "@refs/convert/parquet/default"


def hub_files(url: str, split: str, check_codec: Callable[[str], None]) -> ParquetFiles:
    """The Parquet files of a split: downloaded, or of the newest commit on the Hub if their images are compressed.
    check_codec: called with the codec of the first file; may raise.

    Raises ConfigError for another URL, DatasetNotFound, StorageForbidden, StorageFailed.
    """
    match = _URL.fullmatch(url)
    if match is None or ".." in url.split("/"):
        raise ConfigError(f"data.root={url} is no data set; expected hf://datasets/OWNER/NAME[@REVISION][/FOLDER]")
    import huggingface_hub
    from huggingface_hub import constants

    repo: dict[str, Any] = {"repo_id": match["repo_id"], "repo_type": "dataset"}
    folder = f"{match['folder']}/" if match["folder"] else ""
    with explained(url):
        if constants.HF_HUB_OFFLINE:
            found = huggingface_hub.snapshot_download(
                **repo, revision=match["revision"], local_files_only=True, allow_patterns=[CARD]
            )
            if (files := parquet_files(Root(str(Path(found, folder).resolve())), split)) is None:
                raise DatasetNotFound(
                    f"{url} has no files of {split} in {found} (data.root); unset HF_HUB_OFFLINE to download them"
                )
            return files
        about = huggingface_hub.HfApi().dataset_info(match["repo_id"], revision=match["revision"])
        names = [file.rfilename for file in about.siblings or []]
        inside = [name.removeprefix(folder) for name in names if name.startswith(folder)]
        if not (wanted := names_of_split(inside, split)):
            raise DatasetNotFound(_without_split(url, split, names))
        place = f"hf://datasets/{match['repo_id']}@{about.sha}/{folder}".removesuffix("/")
        codec = codec_of(f"{place}/{wanted[0]}")
        check_codec(codec)
        if codec:
            tell_once(f"{url}: {len(wanted)} files of {split} are read over the network, and not downloaded")
            return ParquetFiles(place, split, wanted)
        tell_once(f"{url}: {len(wanted)} files of {split} come from the Hub, unless {constants.HF_HUB_CACHE} has them")
        patterns = [glob.escape(folder + name) for name in (*wanted, *{CARD} & {*inside})]
        found = huggingface_hub.snapshot_download(**repo, revision=match["revision"], allow_patterns=patterns)
    return ParquetFiles(str(Path(found, folder)), split, wanted)


def _without_split(url: str, split: str, names: list[str]) -> str:
    parquet = [name for name in names if name.endswith(".parquet")]
    if not parquet:
        return (
            f"{url} has no Parquet files (data.root); the Hub converts many data sets: try data.root={url}{_CONVERTED}"
        )
    return (
        f"{url} has no Parquet files of {split}, but {', '.join(parquet[:3])} (data.root); expected {split}-*.parquet. "
        "Add the folder that holds such files to data.root, or name another split with data.train_folder, "
        "data.val_folder"
    )

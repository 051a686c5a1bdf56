"""Data sets on the Hugging Face Hub: hf://datasets/OWNER/NAME[@REVISION][/FOLDER].

Their Parquet files are downloaded into the cache of huggingface_hub, which other programs share, and read there.
"""

import glob
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from imagenet_opt.data.index.parquet import CARD, names_of_split, parquet_files
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.errors import (
    ConfigError,
    DatasetNotFound,
    ImagenetOptError,
    StorageFailed,
    StorageForbidden,
    named_first_line,
)

_URL = re.compile(
    r"hf://datasets/(?P<repo_id>[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[^/@]+))?(?:/(?P<folder>.+?))?/?"
)
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_CONVERTED = "@refs/convert/parquet/default"


def hub_folder(url: str, split: str, accept: Callable[[Path], None] = lambda file: None) -> Path:
    """Download the Parquet files of a split; returns the folder in the cache that stands for `url`. accept: called with
    the first file before the others are downloaded; may raise.

    Raises ConfigError for another URL, DatasetNotFound, StorageForbidden, StorageFailed.
    """
    match = _URL.fullmatch(url)
    if match is None or ".." in url.split("/"):
        raise ConfigError(f"data.root={url} is no data set; expected hf://datasets/OWNER/NAME[@REVISION][/FOLDER]")
    import huggingface_hub
    from huggingface_hub import constants

    repo: dict[str, Any] = {"repo_id": match["repo_id"], "repo_type": "dataset"}
    folder = f"{match['folder']}/" if match["folder"] else ""
    with _explained(url):
        if constants.HF_HUB_OFFLINE:
            found = huggingface_hub.snapshot_download(
                **repo, revision=match["revision"], local_files_only=True, allow_patterns=[CARD]
            )
            if not parquet_files(Path(found, folder), split):
                raise DatasetNotFound(
                    f"{url} has no files of {split} in {found} (data.root); unset HF_HUB_OFFLINE to download them"
                )
            return Path(found, folder)
        about = huggingface_hub.HfApi().dataset_info(match["repo_id"], revision=match["revision"])
        names = [file.rfilename for file in about.siblings or []]
        inside = [name.removeprefix(folder) for name in names if name.startswith(folder)]
        if not (files := names_of_split(inside, split)):
            raise DatasetNotFound(_without_split(url, split, names))
        first = huggingface_hub.hf_hub_download(filename=folder + files[0], revision=match["revision"], **repo)
        accept(Path(first))
        tell_once(f"{url}: {len(files)} files of {split} come from the Hub, unless {constants.HF_HUB_CACHE} has them")
        wanted = [glob.escape(folder + name) for name in (*files, *{CARD} & {*inside})]
        found = huggingface_hub.snapshot_download(**repo, revision=match["revision"], allow_patterns=wanted)
    return Path(found, folder)


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


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Errors of the Hub get one line with the remedy."""
    from huggingface_hub import errors

    try:
        yield
    except ImagenetOptError:
        raise
    except errors.GatedRepoError as error:
        raise StorageForbidden(f"{url} is gated (data.root): ask for access on its page, then {_LOG_IN}") from error
    except errors.RepositoryNotFoundError as error:
        raise DatasetNotFound(
            f"{url} does not exist, or is private (data.root): check the name; for a private data set {_LOG_IN}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DatasetNotFound(f"{url} does not exist in this revision (data.root); check the name after @") from error
    except Exception as error:
        if _status(error) in (401, 403):
            raise StorageForbidden(f"the Hub refuses the token for {url} (data.root): {_LOG_IN}") from error
        raise StorageFailed(
            f"cannot read {url} (data.root): {named_first_line(error)}; check the network and HF_ENDPOINT, then run "
            "the same command again"
        ) from error


def _status(error: Exception) -> Any:
    return getattr(getattr(error, "response", None), "status_code", None)

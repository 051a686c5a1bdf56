"""Files of the Hugging Face Hub and objects of a bucket, as files that seek: each keeps what it has read last, and a
little more."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

from imagenet_opt.errors import (
    DatasetNotFound,
    ImagenetOptError,
    StorageFailed,
    StorageForbidden,
    named_first_line,
)
from imagenet_opt.object_storage import ObjectStorage
from imagenet_opt.regular_file import open_regular

_HUB_FILE = re.compile(r"hf://datasets/([^/]+/[^/@]+)@([^/]+)/(.+)")
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_MORE_OF_HUB, _MORE_OF_OBJECT = 2**16, 2**20
"""Bytes that a request reads beyond those asked for. A file of the Hub is read for its labels alone, which lie between
large images: few. An object is searched for the places of all its images: many."""


@contextmanager
def hub_file(url: str) -> Iterator[BinaryIO]:
    """A file of a data set, hf://datasets/OWNER/NAME@COMMIT/PATH: the one in the cache of huggingface_hub, or on the
    Hub. Raises as `explained` does."""
    import huggingface_hub

    match = _HUB_FILE.fullmatch(url)
    assert match is not None, "the commit is known"
    repo_id, commit, path = match.groups()
    with explained(url):
        cached = huggingface_hub.try_to_load_from_cache(repo_id, path, revision=commit, repo_type="dataset")
        if isinstance(cached, str):
            file: Any = open(cached, "rb", opener=open_regular)  # noqa: SIM115 (closed below)
        else:
            system = huggingface_hub.HfFileSystem(endpoint=huggingface_hub.constants.ENDPOINT)
            file = system.open(url.removeprefix("hf://"), block_size=_MORE_OF_HUB)
        with file:
            yield file


def object_file(url: str, etag: str, key: str) -> BinaryIO:
    """An object. etag: of its listing; a read of another one raises StorageFailed. key: the config key, for messages.
    Raises FileNotFoundError."""
    from fsspec.spec import AbstractBufferedFile

    root, _, path = url.rpartition("/")
    storage = ObjectStorage(root, key, retries=False)
    if (found := storage.head(path)) is None:
        raise FileNotFoundError(2, "there is no such object")
    read = partial(storage.read, path, etag=etag or found.etag)

    class ObjectFile(AbstractBufferedFile):
        def _fetch_range(self, start: int, end: int) -> bytes:
            return read(start=start, size=end - start)

    file: BinaryIO = ObjectFile(None, path, size=found.size, block_size=_MORE_OF_OBJECT)
    return file


@contextmanager
def explained(url: str) -> Iterator[None]:
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

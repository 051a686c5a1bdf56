"""What the indexes of all splits below a URL have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray


class Part(NamedTuple):
    """Some samples of an index. rows: int64 (num_samples,), their places in `whole`."""

    whole: "RemoteIndex"
    rows: NDArray[np.int64]


class RemoteIndex:
    """Base of the dataclasses of such indexes. url: of the split. folder: of the columns, in data.cache_dir. sizes:
    int64 (num_samples,), bytes of each sample. is_whole: False for some samples of an index, and for an index that is
    not in data.cache_dir; then pickle copies the columns, which another process maps otherwise. part: of which index
    these samples are a part."""

    url: str
    folder: Path
    sizes: NDArray[np.int64]
    is_whole: bool
    part: Part | None

    @property
    def place(self) -> str:
        return self.url

    @property
    def cache_dir(self) -> Path:
        """data.cache_dir."""
        return self.folder.parents[1]

    @property
    def fingerprint(self) -> str:
        """Name of the local cache of the samples; changes with their content."""
        raise NotImplementedError

    def _as_copy(self) -> tuple[Callable[..., Self], tuple[type[Self], dict[str, Any]]]:
        """For pickle: a copy with all columns."""
        return _copied, (type(self), self.__dict__)


def _copied(kind: Callable[..., Any], fields: dict[str, Any]) -> Any:
    return kind(**fields)

"""A journal on disk of the files of a split that were fetched."""

import hashlib
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.atomic_file import replacing
from imagenet_opt.data.index.files import SplitFiles
from imagenet_opt.errors import ConfigError


class Journal:
    """The files of a split, and a memory-mapped byte for each file, which survives any end of the process.

    done: uint8 (num_files,), 1 for fetched. outdated: whether a journal of other files of this folder was removed.

    Raises ConfigError for a folder that cannot be written.
    """

    def __init__(self, folder: Path, files: SplitFiles) -> None:
        self.files = files
        place = hashlib.sha256(os.fsencode(files.folder)).hexdigest()[:16]
        self.path = folder / f"{place}-{files.fingerprint}.done"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            others = [other for other in folder.glob(f"{place}-*.done") if other != self.path]
            for other in others:
                other.unlink(missing_ok=True)
            if not self.path.exists() or self.path.stat().st_size != files.num:
                with replacing(self.path) as fresh:  # full size: a full disk would end the process at a later write
                    fresh.write_bytes(bytes(files.num))
            self.done: NDArray[np.uint8] = np.memmap(self.path, np.uint8, "r+", shape=(files.num,))
        except OSError as error:
            raise ConfigError(
                f"cannot write a journal in {folder} ({error.strerror or error}); add data.cache_dir=FOLDER"
            ) from error
        self.outdated = bool(others)

    @property
    def left(self) -> NDArray[np.int64]:
        """Indices of the files that are not done."""
        return np.flatnonzero(self.done != 1)

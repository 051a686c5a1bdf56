"""What is no regular file is an error of the system, and nothing waits for it."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.storage.record_store import RecordStore


@pytest.mark.parametrize(
    ("what", "code"),
    [
        *(("nothing", errno.ENOENT), ("folder", errno.EISDIR), ("loop", errno.ELOOP), ("no right", errno.EACCES)),
        *(("device", errno.ENXIO), ("pipe", errno.ENXIO), ("hole", errno.EFBIG)),
    ],
)
def test_errors_of_the_system_are_raised(what: str, code: int, tmp_path: Path) -> None:
    file = tmp_path / "data/train/a/x.JPEG"
    file.parent.mkdir(parents=True)
    file.touch()
    index = open_index(tmp_path / "data", "train", tmp_path / "cache")
    file.unlink()
    if what == "folder":
        file.mkdir()
    elif what == "loop":
        file.symlink_to(file)
    elif what == "device":
        file.symlink_to("/dev/zero")
    elif what == "pipe":
        os.mkfifo(file)
    elif what == "hole":
        file.touch()
        os.truncate(file, 2**40)
    elif what == "no right":
        if os.geteuid() == 0:
            pytest.skip("root reads every file")
        file.touch(mode=0)
    with pytest.raises(OSError) as caught:
        RecordStore(index).read_many(np.array([0]))
    assert caught.value.errno == code

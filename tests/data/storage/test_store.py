"""Bytes of files, whatever their names; what the system says of those that cannot be read goes on as it is."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.folder_index import open_split
from imagenet_opt.data.storage.store import FolderStore


def test_bytes_come_in_the_order_that_was_asked_for(images_root: Path, tmp_path: Path) -> None:
    index = open_split(images_root, "val", tmp_path)
    files = sorted((images_root / "val").glob("*/*.JPEG"))
    store = FolderStore(index)
    assert store.read_many(np.array([38, 0, 7, 7])) == [files[i].read_bytes() for i in (38, 0, 7, 7)]
    assert [group.tolist() for group in store.groups(np.array([38, 0, 7]))] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("what", "code"),
    [("nothing", errno.ENOENT), ("folder", errno.EISDIR), ("loop", errno.ELOOP), ("door", errno.EACCES)],
)
def test_what_cannot_be_read_says_why(what: str, code: int, tmp_path: Path) -> None:
    file = tmp_path / "data/train/a/x.JPEG"
    file.parent.mkdir(parents=True)
    file.touch()
    index = open_split(tmp_path / "data", "train", tmp_path / "cache")
    file.unlink()
    if what == "folder":
        file.mkdir()
    elif what == "loop":
        file.symlink_to(file)
    elif what == "door":
        if os.geteuid() == 0:
            pytest.skip("root reads every file")
        file.touch(mode=0)
    with pytest.raises(OSError) as caught:
        FolderStore(index).read_many(np.array([0]))
    assert caught.value.errno == code


def test_a_name_of_any_bytes_is_read_and_can_be_printed(tmp_path: Path) -> None:
    folder = tmp_path / "data/train/klasse ß"
    folder.mkdir(parents=True)
    Path(os.fsdecode(os.fsencode(folder) + b"/a \xff\xe9\n\x1b[2J.JPEG")).write_bytes(b"content")
    store = FolderStore(open_split(tmp_path / "data", "train", tmp_path / "cache"))
    assert store.read_many(np.array([0])) == [b"content"]
    assert store.name(0).encode() == f"{folder}/a \\xff\\xe9\\n\\x1b[2J.JPEG".encode()

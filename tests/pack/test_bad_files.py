"""Images and reads that fail while packing: what is left out and listed, and what stops the pack."""

import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_opt.data.decode.decoder import Decoder
from imagenet_opt.data.index.shard_index import open_shards
from imagenet_opt.data.storage import record_store
from imagenet_opt.errors import BadSample, DataError, StorageFailed
from imagenet_opt.pack.image import PackOptions, prepare
from imagenet_opt.pack.pack import Packed, pack
from tests.pack.packs import SMALL, contents, jpeg, names_of, png, rejected, samples, small_tree, tree


def test_bad_files_are_left_out_and_listed_with_the_reason(tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    good = {f"a/{i}.JPEG" for i in range(4)} | {f"b/{i}.JPEG" for i in range(4)}
    whole, picture = jpeg(64, 64), png(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8))
    bad = {
        "a/empty.JPEG": (b"", "the file is empty"),
        "a/text.JPEG": (b"<html>404 not found</html>", "not an image: the file begins with b'<html>404 no'"),
        "a/cut.JPEG": (whole[: len(whole) // 2], "cannot be decoded: "),
        "b/cut.png": (picture[:-100], "cannot be decoded: "),
        "b/header.JPEG": (whole[:30], ""),
    }
    tree(root / "val", {name: content for name, (content, _) in bad.items()})
    (root / "val/b/gone.JPEG").symlink_to(tmp_path / "nowhere")
    (root / "val/b/loop.JPEG").symlink_to(root / "val/b/loop.JPEG")
    (root / "val/b/clear\x1b[2J\udcff.JPEG").touch()
    (root / "val/b/endless.JPEG").symlink_to("/dev/zero")
    os.mkfifo(root / "val/b/pipe.JPEG")
    tree(root / "val", {"b/longer.JPEG": whole + b"\0\0 and a note", "b/really a png.JPEG": picture})
    good |= {"b/longer.JPEG", "b/really a png.JPEG"}

    packed = pack(root, tmp_path / "out", SMALL)
    assert (packed.images, packed.rejected) == (8 + len(good), len(bad) + 5)
    assert set(names_of(open_shards(tmp_path / "out/val"))) == good
    header, *rows = rejected(tmp_path / "out/val")
    assert header == ["file", "reason"]
    reasons = {os.path.relpath(path, root / "val"): reason for path, reason in rows}
    assert len(rows) == len(reasons) == len(bad) + 5
    for name, (_, reason) in bad.items():
        assert reasons[name].startswith(reason)
    assert all("not a regular file" in reasons[f"b/{name}.JPEG"] for name in ("endless", "pipe"))
    assert reasons[r"b/clear\x1b[2J\xff.JPEG"] == "the file is empty"
    assert "No such file or directory" in reasons["b/gone.JPEG"]
    assert "Too many levels of symbolic links" in reasons["b/loop.JPEG"]
    assert rejected(tmp_path / "out/train") == [["file", "reason"]]
    assert [sample["png"] for sample in samples(tmp_path / "out/val") if "png" in sample] == [picture]


def test_a_split_without_any_image_is_an_error(tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    for image in root.glob("val/*/*"):
        image.write_bytes(b"no image")
    with pytest.raises(
        DataError, match=r"no image in .*data/val \(data\.root\) can be packed; .*rejected\.csv says why"
    ):
        pack(root, tmp_path / "out", SMALL)
    assert len(rejected(tmp_path / "out/val")) == 9


WHOLE = jpeg(64, 48)


@pytest.mark.parametrize(
    ("encoded", "fits"),
    [
        (WHOLE, True),
        (jpeg(64, 48, progressive=True), True),
        (jpeg(64, 48, mode="CMYK"), True),
        (WHOLE + b"\0" * 5000, True),
        (WHOLE[:-2], False),
        (WHOLE[:200] + b"\xff\xd9", False),
        (png(np.zeros((48, 64), np.uint16)), True),
        (png(np.zeros((48, 64, 4), np.uint8)), True),
        (png(np.zeros((48, 64, 3), np.uint8))[:-20], False),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", False),
        (b"", False),
    ],
)
def test_pack_and_training_accept_the_same_images(encoded: bytes, fits: bool) -> None:
    def packs() -> None:
        assert prepare(encoded, PackOptions())[0] == encoded

    def opens() -> None:
        decoder = Decoder(exif_rotation=False, max_crop_pixels=2**22)
        image = decoder.open(encoded, "some.JPEG")
        assert decoder.crop(image, (0, 0, image.height, image.width)).shape == (48, 64, 3)

    for check in (packs, opens):
        if fits:
            check()
        else:
            with pytest.raises(BadSample):
                check()


@pytest.fixture
def packed_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Packed]:
    """Packs data/ into a new folder; reads fail as `fails` says, by class/file and number of the try."""
    root, read_part = small_tree(tmp_path / "data"), record_store.read_part

    def packed(out: str, fails: Callable[[str, int], bool]) -> Packed:
        tries = Counter[str]()

        def faulty(descriptor: int, *part: Any) -> bytes:
            name = os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), root / "train")
            tries[name] += 1
            if fails(name, tries[name]):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read_part(descriptor, *part)

        monkeypatch.setattr(record_store, "read_part", faulty)
        return pack(root, tmp_path / out, SMALL, read_timeout=2.0)

    return packed


def test_a_read_is_repeated_and_a_file_that_stays_unreadable_is_listed(
    packed_with: Callable[..., Packed], tmp_path: Path
) -> None:
    undisturbed = packed_with("whole", lambda name, number: False)
    assert packed_with("repeated", lambda name, number: number == 1) == undisturbed
    assert contents(tmp_path / "repeated") == contents(tmp_path / "whole") and undisturbed.rejected == 0
    assert packed_with("left out", lambda name, number: name == "a/3.JPEG").images == undisturbed.images - 1
    _, (place, reason) = rejected(tmp_path / "left out/train")
    assert place == str(tmp_path / "data/train/a/3.JPEG") and "Input/output error" in reason


def test_an_outage_of_the_storage_stops_the_pack_and_rejects_nothing(
    packed_with: Callable[..., Packed], tmp_path: Path
) -> None:
    def unmounted(name: str, number: int) -> bool:
        if (tmp_path / "data").exists():
            (tmp_path / "data").rename(tmp_path / "unmounted")
        return True

    with pytest.raises(StorageFailed, match=r"data/train has disappeared .*data\.read_timeout"):
        packed_with("out", unmounted)
    (tmp_path / "unmounted").rename(tmp_path / "data")
    with pytest.raises(StorageFailed, match=r"Input/output error .*/train/\w/\d\.JPEG and other files"):
        packed_with("out", lambda name, number: True)
    assert not [file for file in tmp_path.rglob("*") if file.name == "rejected.csv" or ".tar" in file.name]

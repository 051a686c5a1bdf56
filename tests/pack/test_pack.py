"""What is packed, from which layouts, what is left out and told, and what survives damage."""

import csv
import errno
import fcntl
import gc
import io
import os
import shutil
import subprocess
import sys
import tarfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import webdataset
from PIL import Image

from imagenet_opt.data.decode.decoder import Decoder
from imagenet_opt.data.index.shard_index import ShardIndex, ShardStore, open_shards
from imagenet_opt.errors import (
    BadSample,
    ClassMismatch,
    ConfigError,
    DataError,
    EmptyClass,
    PackStopped,
    ShardMismatch,
)
from imagenet_opt.pack.folder_claim import CLAIM
from imagenet_opt.pack.image import prepare
from imagenet_opt.pack.layouts import open_train
from imagenet_opt.pack.pack import Packed, pack
from imagenet_opt.pack.plan import PackOptions
from imagenet_opt.pack.shard_writer import ShardPart, key_of_sample, write_shard
from imagenet_opt.pack.source import Source
from imagenet_opt.pack.verify import verify

SMALL = PackOptions(shard_mb=0.02)


def jpeg(width: int = 32, height: int = 24, *, mode: str = "RGB", seed: int = 0, **save: object) -> bytes:
    bands = len(Image.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, bands), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze(), mode=None if mode != "CMYK" else "CMYK").save(file, "JPEG", **save)
    return file.getvalue()


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def tree(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return root


def small_tree(root: Path) -> Path:
    """Two classes of four images, in train/ and val/."""
    names = [f"{split}/{name}/{i}.JPEG" for split in ("train", "val") for name in "ab" for i in range(4)]
    return tree(root, {name: jpeg(seed=i) for i, name in enumerate(names)})


def names_of(index: ShardIndex) -> list[str]:
    places = index.name_offsets.tolist()
    return [os.fsdecode(index.names[start:end].tobytes()) for start, end in pairwise(places)]


def read(index: ShardIndex) -> list[bytes]:
    return ShardStore(index).read_many(np.arange(len(index)))


def samples(folder: Path, *steps: Callable[[Any], Any]) -> list[Any]:
    """As WebDataset gives them. It leaves its files to be closed some time."""
    pipeline = webdataset.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for step in steps:
            pipeline = step(pipeline)
        found = list(pipeline)
        del pipeline
        gc.collect()
    return found


def rejected(folder: Path) -> list[list[str]]:
    with open(folder / "rejected.csv", errors="surrogateescape", newline="") as file:
        return list(csv.reader(file))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# What is in the shards


def test_webdataset_decodes_images_and_labels(images_root: Path, tmp_path: Path) -> None:
    pack(images_root, tmp_path / "out", PackOptions(shard_mb=0.03))
    for split in ("train", "val"):
        index = open_shards(tmp_path / "out" / split)
        found = samples(index.folder, lambda read: read.decode("pil").to_tuple("jpg;png", "cls"))
        assert [label for _, label in found] == index.labels.tolist()
        for (image, _), name in zip(found, names_of(index), strict=True):
            with Image.open(images_root / split / name) as expected:
                assert np.array_equal(image, expected.convert("RGB"))


def test_train_and_val_in_one_folder_is_a_warning(
    images_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack(images_root, tmp_path / "apart", SMALL)
    assert not caplog.records
    pack(images_root, tmp_path / "out", SMALL, val_folder="train")
    assert "train and val are the same folder" in caplog.text


def test_odd_names_and_links_come_through(tmp_path: Path) -> None:
    odd = (
        "a.b/x.y.JPEG a.b/x_y.JPEG a.b/same.jpg a.b/same.png|a.b/two  words.JPEG|a.b/.hidden.jpg|a.b/deep.er/1.JPEG|"
        f"__meta__/1.JPEG|__meta__/__a__.JPEG|zürich/日本.JPEG|zürich/{os.fsdecode(b'byte-' + bytes([255]))}.JPEG|"
        f"zürich/new\nline.JPEG|zürich/{'long' * 60}.JPEG|zürich/'q\"u,ote.JPEG"
    )
    first, *others = odd.split("|")
    names = [*first.split(" "), *others]
    expected = {name: jpeg(seed=i) for i, name in enumerate(names)} | {
        "a.b/same.png": png(np.zeros((4, 4, 3), np.uint8))
    }
    root = tree(tmp_path / "data", {f"{split}/{name}": e for split in ("train", "val") for name, e in expected.items()})
    elsewhere = tree(tmp_path, {"elsewhere.JPEG": jpeg(seed=99)}) / "elsewhere.JPEG"
    (root / "val/zürich/link.JPEG").symlink_to(elsewhere)
    expected["zürich/link.JPEG"] = elsewhere.read_bytes()

    packed = pack(root, tmp_path / "out", SMALL)
    assert (packed.images, packed.rejected) == (2 * len(expected) - 1, 0)
    index = open_shards(tmp_path / "out/val")
    assert dict(zip(names_of(index), read(index), strict=True)) == expected
    found = samples(tmp_path / "out/val")
    assert len({sample["__key__"] for sample in found}) == len(expected)
    assert [sample.get("jpg") or sample["png"] for sample in found] == read(index)
    classes = [index.classes[int(sample["cls"])] for sample in found]
    assert classes == [name.split("/")[0] for name in names_of(index)]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("n01440764/n01440764_18.JPEG", "n01440764/n01440764_18-00000007"),
        ("a.b/c.d.JPEG", "a.b/c_d-00000007"),
        ("__a__/b.JPEG", "a__/b-00000007"),
        ("a/\udcffb\n.JPEG", "a/\\xffb_-00000007"),
    ],
)
def test_keys_keep_class_and_name_recognisable(name: str, key: str) -> None:
    assert key_of_sample(name, 7) == key


def test_train_is_shuffled_by_the_seed_and_val_is_not(images_root: Path, tmp_path: Path) -> None:
    orders = {}
    for seed in (0, 1):
        out = tmp_path / f"out{seed}"
        pack(images_root, out, PackOptions(seed=seed))
        orders[seed] = names_of(open_shards(out / "train"))
        val = names_of(open_shards(out / "val"))
        assert val == sorted(val)
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1] and sorted(orders[0]) != orders[0]


def test_the_number_of_processes_changes_nothing(images_root: Path, tmp_path: Path) -> None:
    for workers in (0, 3):
        pack(images_root, tmp_path / f"out{workers}", SMALL, workers=workers)
    assert contents(tmp_path / "out0") == contents(tmp_path / "out3")


def test_shards_are_about_as_large_as_asked(images_root: Path, tmp_path: Path) -> None:
    packed = pack(images_root, tmp_path / "out", PackOptions(shard_mb=0.05))
    sizes = [shard.stat().st_size for shard in tmp_path.glob("out/*/*.tar")]
    assert packed.bytes_out == sum(sizes)
    assert packed.bytes_in == sum(path.stat().st_size for path in images_root.glob("*/*/*"))
    assert 0.03e6 < np.mean(sizes) < 0.08e6


# Smaller images


def opened(encoded: bytes) -> Image.Image:
    return Image.open(io.BytesIO(encoded))


def shrunk(encoded: bytes) -> Image.Image:
    made, extension = prepare(encoded, max_side=100, quality=90)
    assert (opened(made).format, extension) == ("JPEG", "jpg")
    return opened(made)


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [(400, 300, (100, 75)), (300, 400, (75, 100)), (101, 10, (100, 10)), (3000, 2, (100, 1))],
)
def test_the_longer_side_is_what_was_asked(width: int, height: int, size: tuple[int, int]) -> None:
    assert shrunk(jpeg(width, height)).size == size


def test_an_image_that_fits_keeps_every_byte() -> None:
    for encoded in (jpeg(100, 60), jpeg(60, 100, mode="CMYK"), jpeg(5, 5, mode="L")):
        assert prepare(encoded, max_side=100, quality=10) == (encoded, "jpg")
    picture = png(np.zeros((3, 100), np.uint8))
    assert prepare(picture, max_side=100, quality=10) == (picture, "png")


@pytest.mark.parametrize(("mode", "becomes"), [("L", "L"), ("RGB", "RGB"), ("CMYK", "RGB")])
def test_grey_stays_grey_and_the_rest_is_rgb(mode: str, becomes: str) -> None:
    assert shrunk(jpeg(200, 100, mode=mode)).mode == becomes


def test_pixels_are_those_of_a_good_resize() -> None:
    rows, columns = np.mgrid[0:600, 0:800]
    smooth = np.stack([rows * 255 // 599, columns * 255 // 799, 128 + 60 * np.sin(rows / 40)], axis=2).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(smooth).save(file, "JPEG", quality=95)
    expected = opened(file.getvalue()).resize((100, 75), Image.Resampling.BOX)
    assert np.abs(np.asarray(shrunk(file.getvalue()), float) - np.asarray(expected, float)).mean() < 2


def test_16_bits_become_8_without_clipping() -> None:
    made = shrunk(png((np.arange(200 * 200, dtype=np.uint32).reshape(200, 200) * 65535 // 39999).astype(np.uint16)))
    assert made.mode == "L" and made.size == (100, 100)
    assert abs(np.asarray(made, float).mean() - 127.5) < 2


def test_exif_rotation_is_not_applied_and_metadata_goes() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to show
    made = shrunk(jpeg(400, 200, exif=exif, comment=b"taken by someone"))
    assert made.size == (100, 50)
    assert not made.getexif() and "comment" not in made.info


def test_quality_decides_the_size() -> None:
    sizes = [len(prepare(jpeg(400, 300), max_side=100, quality=quality)[0]) for quality in (30, 90)]
    assert sizes[0] < sizes[1] / 2


def huge_jpeg(side: int) -> bytes:
    """All mid-grey, side x side pixels: each block of 8 x 8 is 001010, a DC difference of 0 and the end of block."""
    file = io.BytesIO()
    Image.new("L", (8, 8), 128).save(file, "JPEG", quality=90)
    header, start_of_scan = file.getvalue(), file.getvalue().index(b"\xff\xda") + 10
    size = header.index(b"\xff\xc0") + 5
    header = header[:size] + side.to_bytes(2, "big") * 2 + header[size + 4 : start_of_scan]
    return header + bytes([0x28, 0xA2, 0x8A]) * ((side // 8) ** 2 // 4) + b"\xff\xd9"


def test_an_image_of_20000_pixels_takes_little_memory(tmp_path: Path) -> None:
    file = tmp_path / "huge.jpg"
    file.write_bytes(huge_jpeg(20000))
    code = (
        "import resource, sys; from pathlib import Path; from imagenet_opt.pack.image import prepare\n"
        "encoded = Path(sys.argv[1]).read_bytes()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "made = prepare(encoded, max_side=256, quality=90)[0]\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        "Path(sys.argv[1]).write_bytes(made)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, file], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60_000  # KiB; it has 400 MB of pixels
    with Image.open(file) as made:
        assert made.size == (256, 256)
        assert made.getextrema() == (128, 128)


def test_a_huge_image_that_only_full_decoding_opens_is_refused() -> None:
    header = png(np.zeros((1, 1), np.uint8))
    huge = header[:16] + (20000).to_bytes(4, "big") * 2 + header[24:]
    huge = huge[:29] + zlib.crc32(huge[12:29]).to_bytes(4, "big") + huge[33:]
    with pytest.raises(BadSample, match="400000000"):
        prepare(huge, max_side=None, quality=90)


# What is left out


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
    tree(root / "val", {"b/longer.JPEG": whole + b"\0\0 and a note", "b/really a png.JPEG": picture})
    good |= {"b/longer.JPEG", "b/really a png.JPEG"}

    packed = pack(root, tmp_path / "out", SMALL)
    assert (packed.images, packed.rejected) == (8 + len(good), len(bad) + 2)
    assert set(names_of(open_shards(tmp_path / "out/val"))) == good
    header, *rows = rejected(tmp_path / "out/val")
    assert header == ["file", "reason"]
    reasons = {os.path.relpath(path, root / "val"): reason for path, reason in rows}
    assert len(rows) == len(reasons) == len(bad) + 2
    for name, (_, reason) in bad.items():
        assert reasons[name].startswith(reason)
    assert reasons["b/gone.JPEG"] == "No such file or directory"
    assert reasons["b/loop.JPEG"] == "Too many levels of symbolic links"
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
        (jpeg(64, 48, mode="L"), True),
        (jpeg(64, 48, mode="CMYK"), True),
        (WHOLE + b"\0" * 1000, True),
        (WHOLE + b"\0" * 5000, True),
        (WHOLE[:-2], False),
        (WHOLE[: len(WHOLE) // 2], False),
        (WHOLE[:200] + b"\xff\xd9", False),
        (b"\xff\xd8\xff\xd9", False),
        (png(np.zeros((48, 64), np.uint16)), True),
        (png(np.zeros((48, 64, 4), np.uint8)), True),
        (png(np.zeros((48, 64, 3), np.uint8))[:-20], False),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", False),
        (b"<svg/>", False),
        (b"", False),
    ],
)
def test_what_is_packed_is_what_training_opens(encoded: bytes, fits: bool) -> None:
    def packs() -> None:
        assert prepare(encoded, max_side=None, quality=90)[0] == encoded

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


# Storage that fails


class Faulty(Source):
    """Answers EIO to some reads. fails: whether one does, by file and number of the try."""

    fails: ClassVar[Callable[[int, int], bool]]
    tries: ClassVar[Counter[int]]

    def read_once(self, i: int) -> bytes:
        self.tries[i] += 1
        if type(self).fails(i, self.tries[i]):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read_once(i)


@pytest.fixture
def shard_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ShardPart]:
    """Writes a shard of eight files of storage that fails so; it is patient for a short while."""
    monkeypatch.setattr("imagenet_opt.pack.source.PATIENCE", 0.3)
    source = open_train(small_tree(tmp_path / "data"), "train")
    options: dict[str, Any] = {"first": 0, "max_side": None, "quality": 90, "advance": lambda: None}

    def write(fails: Callable[[int, int], bool]) -> ShardPart:
        Faulty.fails, Faulty.tries = staticmethod(fails), Counter()
        return write_shard(tmp_path / "a.tar", Faulty(source.files, nested=True), **options)

    return write


def test_a_read_that_fails_once_is_made_again(shard_from: Callable[..., ShardPart], tmp_path: Path) -> None:
    undisturbed = shard_from(lambda i, number: False)
    content = (tmp_path / "a.tar").read_bytes()
    assert shard_from(lambda i, number: number == 1) == undisturbed
    assert (tmp_path / "a.tar").read_bytes() == content and undisturbed.rejected == []


def test_one_file_that_stays_unreadable_is_listed(shard_from: Callable[..., ShardPart], tmp_path: Path) -> None:
    part = shard_from(lambda i, number: i == 3)
    assert part.rejected == [(str(tmp_path / "data/train/a/3.JPEG"), "Input/output error")]
    assert len(part.names) == 7


def test_files_without_permission_are_listed_however_many(
    shard_from: Callable[..., ShardPart], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, *_: Any, **__: Any) -> Any:  # as the system does for all but root
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr("imagenet_opt.pack.source.open", refuse, raising=False)
    part = shard_from(lambda i, number: False)
    assert part.names == [] and len(part.rejected) == 8
    assert part.rejected[3] == (str(tmp_path / "data/train/a/3.JPEG"), "Permission denied")


def test_storage_that_stays_away_stops_the_pack_and_rejects_nothing(
    shard_from: Callable[..., ShardPart], tmp_path: Path
) -> None:
    words = r"^.*/train/\w/\d\.JPEG and other files cannot be read \(Input/output error\); restore the storage .*$"
    with pytest.raises(PackStopped, match=words):
        shard_from(lambda i, number: True)
    assert not list(tmp_path.glob("*.tar*"))


# Other layouts


def archive(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def ilsvrc(root: Path) -> dict[str, bytes]:
    """A tar file a class, a flat val/. Returns the images by class/name."""
    images = {
        f"{name}/{name}_{i}.JPEG": jpeg(seed=10 * c + i) for c, name in enumerate(("n01", "n02")) for i in range(3)
    }
    for name in ("n01", "n02"):
        archive(root / f"train/{name}.tar", {n.split("/")[1]: e for n, e in images.items() if n.startswith(name)})
    tree(root, {f"val/ILSVRC2012_val_0000000{i}.JPEG": jpeg(seed=50 + i) for i in range(1, 4)})
    return images


KAGGLE = (
    "ImageId,PredictionString\nILSVRC2012_val_00000002,n02 1 2 3 4 n02 5 6 7 8\n"
    "ILSVRC2012_val_00000001,n02 9 9 9 9\nILSVRC2012_val_00000003,n01 1 1 1 1\n"
)
PLAIN = (
    "ILSVRC2012_val_00000001.JPEG n02\nval/ILSVRC2012_val_00000002.JPEG   n02\n\nILSVRC2012_val_00000003.JPEG\tn01\n"
)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("data/LOC_val_solution.csv", KAGGLE),
        ("LOC_val_solution.csv", KAGGLE),
        ("data/val/LOC_val_solution.csv", KAGGLE),
        ("elsewhere/labels.txt", "\ufeff" + PLAIN),  # as some editors begin a text
    ],
)
def test_ilsvrcs_own_layout_is_packed(place: str, text: str, tmp_path: Path) -> None:
    images = ilsvrc(tmp_path / "data")
    listed = tree(tmp_path, {place: text.encode()}) / place
    labels = listed if "elsewhere" in place else None
    pack(tmp_path / "data", tmp_path / "packs/out", SMALL, val_labels=labels)
    train, val = (open_shards(tmp_path / "packs/out" / split) for split in ("train", "val"))
    assert train.classes == val.classes == ("n01", "n02")
    assert dict(zip(names_of(train), read(train), strict=True)) == images
    assert names_of(val) == [
        "n02/ILSVRC2012_val_00000001.JPEG",
        "n02/ILSVRC2012_val_00000002.JPEG",
        "n01/ILSVRC2012_val_00000003.JPEG",
    ]
    assert val.labels.tolist() == [1, 1, 0]
    assert read(val) == [jpeg(seed=50 + i) for i in range(1, 4)]


def test_a_bad_member_of_an_archive_is_listed_with_the_archive(tmp_path: Path) -> None:
    ilsvrc(tmp_path / "data")
    tree(tmp_path / "data", {"LOC_val_solution.csv": KAGGLE.encode()})
    archive(tmp_path / "data/train/n02.tar", {"good.JPEG": jpeg(), "bad.JPEG": b"", "notes.txt": b"x"})
    assert pack(tmp_path / "data", tmp_path / "out", SMALL).rejected == 1
    assert rejected(tmp_path / "out/train")[1:] == [[f"{tmp_path}/data/train/n02.tar: bad.JPEG", "the file is empty"]]


@pytest.mark.parametrize("keep", [0.3, 0.85])
def test_an_archive_that_is_cut_short_is_named(keep: float, tmp_path: Path) -> None:
    ilsvrc(tmp_path / "data")
    tree(tmp_path / "data", {"LOC_val_solution.csv": KAGGLE.encode()})
    path = tmp_path / "data/train/n02.tar"
    archive(path, {f"{i}.JPEG": jpeg(200, 200, seed=i) for i in range(4)})
    with tarfile.open(path) as tar:
        end = tar.getmembers()[-1].offset
    os.truncate(path, end if keep > 0.5 else int(keep * path.stat().st_size))
    with pytest.raises(DataError, match=r"n02\.tar is truncated or not a tar file .*download it again \(data\.root\)"):
        pack(tmp_path / "data", tmp_path / "out", SMALL)


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, **more: Any) -> bytes:
    """A tar file of one header and no content."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = size, kind
    for key, value in more.items():
        setattr(entry, key, value)
    return entry.tobuf(tarfile.GNU_FORMAT) + bytes(2048)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (member("../x.JPEG"), "'../x.JPEG' lies outside of the archive"),
        (member("a/../../x.JPEG"), "'../x.JPEG' lies outside of the archive"),
        (member("/etc/x.JPEG"), "'/etc/x.JPEG' lies outside of the archive"),
        (member("x.JPEG", 2**62), "claims 4611686018427387904 bytes"),
        (member("x.JPEG", 4096), "claims 4096 bytes"),
        (member("x.JPEG", -512), "claims -512 bytes"),
        (member("x.JPEG", kind=tarfile.SYMTYPE, linkname="/etc/passwd"), "'x.JPEG' is a link or a sparse file"),
        (
            member("x\x1b[2J\n.JPEG", kind=tarfile.LNKTYPE, linkname="y"),
            r"'x\x1b[2J\n.JPEG' is a link or a sparse file",
        ),
        (b"not a tar file at all" * 100, "not a tar file"),
    ],
)
def test_an_archive_that_leads_elsewhere_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    ilsvrc(tmp_path / "data")
    (tmp_path / "data/train/n02.tar").write_bytes(content)
    with pytest.raises(DataError) as caught:
        pack(tmp_path / "data", tmp_path / "out", SMALL)
    said = str(caught.value)
    assert words in said and "n02.tar is truncated or not a tar file" in said and said.isprintable()


def test_an_archive_without_images_is_named(tmp_path: Path) -> None:
    ilsvrc(tmp_path / "data")
    archive(tmp_path / "data/train/n02.tar", {"notes.txt": b"x"})
    with pytest.raises(EmptyClass, match=r"no images in .*n02\.tar"):
        pack(tmp_path / "data", tmp_path / "out", SMALL)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        (None, ConfigError, "no LOC_val_solution.csv is there or above; give a list of the classes with val_labels="),
        (KAGGLE.replace("n02 9", "n09 9"), ClassMismatch, "names 1 classes that the training images do not have"),
        (PLAIN.replace("\tn01", ""), ConfigError, "line 4: expected FILE CLASS, found 'ILSVRC2012_val_00000003.JPEG'"),
        (PLAIN.partition("\n")[2], ConfigError, "no class for 1 of 3 images in "),
        (
            PLAIN + "val/ILSVRC2012_val_00000001.JPEG n01",
            ConfigError,
            "line 5: 'val/ILSVRC2012_val_00000001.JPEG'",
        ),
        (PLAIN.replace("n01", "n\x1b[2J"), ClassMismatch, r"such as 'n\x1b[2J'"),
        (PLAIN + "\0\x1b", ConfigError, r"line 5: expected FILE CLASS, found '\x00\x1b'"),
        ("ImageId,x\n" + "y" * 200_000, ConfigError, "line 2: expected FILE CLASS, found 'yyy"),
        ("\0" * 5000, ConfigError, "line 1: expected FILE CLASS, found "),
    ],
)
def test_a_list_of_labels_that_does_not_fit_is_told(
    text: str | None, error: type[Exception], words: str, tmp_path: Path
) -> None:
    ilsvrc(tmp_path / "data")
    labels = None
    if text is not None:
        labels = tree(tmp_path, {"labels.txt": text.encode()}) / "labels.txt"
    with pytest.raises(error) as caught:
        pack(tmp_path / "data", tmp_path / "out", SMALL, val_labels=labels)
    assert words in str(caught.value) and "val_labels" in str(caught.value)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000


def test_labels_that_are_absent_or_of_no_use_are_told(tmp_path: Path) -> None:
    ilsvrc(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere \(val_labels\): No such file"):
        pack(tmp_path / "data", tmp_path / "out", SMALL, val_labels=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"val_labels=.* has subfolders or archives: leave val_labels out"):
        pack(small_tree(tmp_path / "tree"), tmp_path / "out", SMALL, val_labels=tmp_path / "nowhere")


def test_train_and_val_need_the_same_classes(tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    tree(root, {"train/c/1.JPEG": jpeg()})
    with pytest.raises(ClassMismatch, match="only in the first: c"):
        pack(root, tmp_path / "out", SMALL)


# What else may be in out


def test_packing_again_does_nothing(images_root: Path, tmp_path: Path) -> None:
    first = pack(images_root, tmp_path / "out", SMALL)
    assert first.images_seen == first.images == 78
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != CLAIM]
    before = {path: path.stat().st_mtime_ns for path in files}
    again = pack(images_root, tmp_path / "out", SMALL)
    assert again == Packed(**{**vars(first), "images_seen": 0})
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_other_options_are_refused_with_both(tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    pack(root, tmp_path / "out", SMALL)
    before = contents(tmp_path / "out")
    with pytest.raises(ConfigError) as caught:
        pack(root, tmp_path / "out", PackOptions(shard_mb=0.02, max_side=16))
    message = str(caught.value)
    assert f"holds a pack of 8 images in {root}/train with shard_mb=0.02, seed=0, " in message
    assert f"8 images in {root}/train with max_side=16, quality=90, shard_mb=0.02, seed=0" in message
    assert "out=FOLDER" in message and f"remove {tmp_path}/out" in message
    assert contents(tmp_path / "out") == before
    assert pack(root, tmp_path / "out", PackOptions(shard_mb=0.02, quality=20)).images_seen == 0  # nothing to encode


@pytest.mark.parametrize("change", ["a file more", "another name", "another class", "another size"])
def test_other_images_are_refused(change: str, tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    pack(root, tmp_path / "out", SMALL)
    image = root / "train/a/0.JPEG"
    match change:
        case "a file more":
            shutil.copy(image, root / "train/a/9.JPEG")
        case "another name":
            image.rename(root / "train/a/9.JPEG")
        case "another class":
            image.rename(root / "train/b/9.JPEG")
        case "another size":
            image.write_bytes(image.read_bytes() + b"\0")
    with pytest.raises(ConfigError, match="the images have other names, labels or sizes"):
        pack(root, tmp_path / "out", SMALL)


def test_a_moved_source_is_the_same_source(tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    pack(root, tmp_path / "out", SMALL)
    assert pack(root.rename(tmp_path / "moved"), tmp_path / "out", SMALL).images_seen == 0


@pytest.mark.parametrize("out", ["data", "data/out", "data/train/out", "data/..", "link/out"])
def test_out_and_source_must_lie_apart(out: str, tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(ConfigError, match=r"out=.* \(data\.root\) overlap"):
        pack(root, tmp_path / out, SMALL)
    assert {path.name for path in root.iterdir()} == {"train", "val"}


def test_something_else_in_out_is_left_alone(tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    tree(tmp_path / "out", {"val/thesis.txt": b"x"})
    with pytest.raises(ConfigError, match=r"out/val is not empty and has no plan\.json of a pack"):
        pack(root, tmp_path / "out", SMALL)
    assert contents(tmp_path / "out") == {"val/thesis.txt": b"x", "claim": b""}


@pytest.mark.parametrize("plan", ["", "[]", "{}", '{"images": 8, "num_shards": 1000000000000}', "[" * 100_000])
def test_a_damaged_plan_is_told(plan: str, tmp_path: Path) -> None:
    tree(tmp_path / "out", {"train/plan.json": plan.encode()})
    with pytest.raises(ConfigError, match=r"out/train is not empty and has no plan\.json of a pack"):
        pack(small_tree(tmp_path / "data"), tmp_path / "out", SMALL)


def test_a_pack_is_no_source(images_root: Path, tmp_path: Path) -> None:
    pack(images_root, tmp_path / "out", SMALL)
    with pytest.raises(ConfigError, match=r"is packed already; set data\.root to the folder with the original images"):
        pack(tmp_path / "out", tmp_path / "again", SMALL)


def test_an_out_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"cannot write into .*file/out \(Not a directory\); .*out=FOLDER"):
        pack(root, tmp_path / "file/out", SMALL)


# Damage, and making it good


@pytest.fixture(scope="module")
def whole(images_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    pack(images_root, out, SMALL)
    return out


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "out"))


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


def test_a_whole_pack_verifies(whole: Path) -> None:
    seen: list[int] = []
    assert verify(whole / "train", 2, seen.append) == []
    assert sum(seen) == 39


def test_each_difference_is_named_by_shard_and_sample(out: Path) -> None:
    index, folder = open_shards(out / "train"), out / "train"
    first = np.searchsorted(index.shard_ids, np.arange(4)).tolist()
    overwrite(folder / index.shards[0], int(index.offsets[1]) + 30, b"\x55\xaa\x55")
    overwrite(folder / index.shards[1], int(index.offsets[first[1]]) - 512, b"x")  # in a member's name
    last = first[3] - 1
    os.truncate(folder / index.shards[2], int(index.offsets[last]) + 7)
    (folder / index.shards[3]).unlink()
    size = (out.parent / "out/train" / index.shards[2]).stat().st_size
    lines = verify(folder, 2)
    assert lines[0] == f"{index.path(1)}: the bytes do not match the checksum"
    assert lines[1] == f"{folder}/shard-00001.tar: the images are intact, but a label, a name or padding is damaged"
    assert lines[2] == f"{index.path(last)}: truncated, 7 of {index.sizes[last]} bytes"
    assert lines[3].startswith(f"{folder}/shard-00002.tar: {size} bytes, not ")
    assert lines[4].startswith(f"{folder}/shard-00003.tar: No such file or directory; this shard holds ")
    assert len(lines) == 5


def test_a_name_that_is_no_text_can_be_told(tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    tree(root, {f"train/a/{os.fsdecode(bytes([255]))}.JPEG": jpeg(seed=99), "train/b/\n\x1b.JPEG": jpeg(seed=98)})
    pack(root, tmp_path / "out", PackOptions())
    index = open_shards(tmp_path / "out/train")
    place = names_of(index).index("a/\udcff.JPEG")
    assert index.path(place).encode() == f"{tmp_path}/out/train/shard-00000.tar: a/\\xff.JPEG".encode()
    assert index.path(names_of(index).index("b/\n\x1b.JPEG")).endswith(r": b/\n\x1b.JPEG")


def test_a_damaged_column_is_named(out: Path) -> None:
    overwrite(out / "val/labels.npy", 128, b"\1")
    assert verify(out / "val", 1) == [f"{out}/val/labels.npy is damaged"]


def test_without_an_index_there_is_nothing_to_verify(out: Path) -> None:
    (out / "train/index.json").unlink()
    with pytest.raises(ShardMismatch, match=r"no finished pack"):
        verify(out / "train", 1)


@pytest.mark.parametrize(
    "damage", ["lost", "cut", "lost column", "lost index", "half of an index", "damaged part", "leftovers"]
)
def test_packing_again_makes_good_what_was_lost(damage: str, out: Path, whole: Path, images_root: Path) -> None:
    folder, images_seen = out / "train", 39
    match damage:
        case "lost":
            (folder / "shard-00001.tar").unlink()
            images_seen = int((open_shards(whole / "train").shard_ids == 1).sum())
        case "cut":
            os.truncate(folder / "shard-00001.tar", 5000)
            images_seen = int((open_shards(whole / "train").shard_ids == 1).sum())
        case "lost column":
            (folder / "names.npy").unlink()
        case "lost index":
            (folder / "index.json").unlink()
        case "half of an index":
            (folder / "index.json").write_text("{")
        case "damaged part":
            (folder / "index.json").unlink()
            tree(folder, {"parts/shard-00000.tar.json": b"[1", "parts/shard-00001.tar.json": b'{"num_bytes": "x"}'})
        case "leftovers":  # of a kill after index.json was written
            tree(folder, {"parts/shard-00000.tar.json": b"{}", ".shard-00000.tar.host.123.new": b"x"})
            images_seen = 0
    assert pack(images_root, out, SMALL).images_seen == images_seen
    assert contents(out) == contents(whole)
    assert not (folder / "parts").exists()


def test_a_shard_that_cannot_be_made_again_as_it_was_is_told(tmp_path: Path) -> None:
    root, out = small_tree(tmp_path / "data"), tmp_path / "out"
    pack(root, out, SMALL)
    image = root / "val/a/0.JPEG"
    image.write_bytes(image.read_bytes()[:-10] + b"\0" * 8 + b"\xff\xd9")  # of the same size
    (out / "val/shard-00000.tar").unlink()
    with pytest.raises(
        ShardMismatch, match=r"shard-00000\.tar cannot be restored with the same content: .*remove .*pack again"
    ):
        pack(root, out, SMALL)
    assert not (out / "val/shard-00000.tar").exists()


def test_two_packs_do_not_write_into_one_folder(images_root: Path, out: Path) -> None:
    before = contents(out)
    with open(out / "claim") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)  # as a pack that runs
        with pytest.raises(ConfigError, match=r"another imagenet-opt pack writes into .*out"):
            pack(images_root, out, PackOptions(max_side=16))
    assert contents(out) == before
    assert pack(images_root, out, SMALL).images_seen == 0


def test_open_files_do_not_pile_up(images_root: Path, tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    pack(images_root, tmp_path / "out", SMALL, workers=1)
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 1  # that of multiprocessing's own helper

"""What tars hold: members of all formats, beside Python's tarfile; labels and classes; and what is refused."""

import io
import json
import random
import tarfile
from pathlib import Path

import pytest
import webdataset

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.split import Split
from imagenet_opt.errors import DataError
from tests.data.index.tars import header, tar
from tests.object_server import upload
from tests.pack.packs import names_of, read, tree

LONG, DEEP = f"{'n' * 90}/{'m' * 80}/ü", f"{'deep/' * 60}{'n' * 200}"
FILES = [
    *(("a.cls", b"7"), ("a.jpg", bytes(9000))),
    *(("f.older/b.jpg", b"x" * 512), ("f.older/b.cls", b"0")),
    *((f"{LONG}.jpg", b"y" * 513), (f"{LONG}.cls", b"0"), ("empty.txt", b"")),
    *((f"{DEEP}.jpg", b"z"), (f"{DEEP}.cls", b"0")),
]


def opened(root: Path, files: dict[str, bytes]) -> Split:
    return open_index(tree(root / "d/train", files).parent, "train", root / "cache")


def labelled(*labels: str) -> bytes:
    """A tar with an image for each label."""
    samples = ([(f"{i}.jpg", b"x"), (f"{i}.cls", label.encode())] for i, label in enumerate(labels))
    return tar(file for sample in samples for file in sample)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_images_are_where_tarfile_finds_them(format: int, bucket: str, tmp_path: Path) -> None:
    files = FILES[: 7 if format == tarfile.USTAR_FORMAT else None]
    content = tar(files, format=format, mtime=1.5 if format == tarfile.PAX_FORMAT else 1)
    found = opened(tmp_path, {"x.tar": content})
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        expected = [(m.name, m.offset_data, m.size) for m in archive if m.name.endswith(".jpg")]
    assert list(zip(names_of(found), found.offsets.tolist(), found.sizes.tolist(), strict=True)) == expected
    remote = open_index(upload(tmp_path / "d", f"{bucket}/d"), "train", tmp_path / "cache")
    assert read(remote) == read(found) == [image for name, image in files if name.endswith(".jpg")]


def test_webdatasets_own_tars_have_their_images_and_labels(tmp_path: Path) -> None:
    with webdataset.TarWriter(file := io.BytesIO()) as out:
        for i in range(5):
            key = f"n0{i}/part.of.path/{i:06d}"
            out.write({"__key__": key, "jpg": bytes([i]) * 700 * i, "cls": 3 * i, "json": {"label": 3 * i, "width": 4}})
    found = opened(tmp_path, {"0.tar": file.getvalue()})
    assert names_of(found) == [f"n0{i}/part.of.path/{i:06d}.jpg" for i in range(5)]
    assert read(found) == [bytes([i]) * 700 * i for i in range(5)] and found.labels.tolist() == [0, 3, 6, 9, 12]


def test_other_members_do_not_hide_files(tmp_path: Path) -> None:
    """Shared PAX headers, links with long targets or a size, folders, a size in binary, a path with ./ in it, and a
    time where other formats have a part of the path."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "9 path=x\n"}) as out:
        for name, kind in (("d", tarfile.DIRTYPE), ("l", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "t" * 300 if kind != tarfile.DIRTYPE else ""
            entry.size = 700 if kind == tarfile.LNKTYPE else 0
            out.addfile(entry)
    plain = bytearray(header("./d//b.jpg", 512))
    plain[124:136] = bytes([0x80]) + (512).to_bytes(11, "big")
    plain[345:357] = b"14710000000\0"  # of GNU tar: when it was read
    plain[148:156] = b" " * 8
    plain[148:156] = f"{sum(plain):06o}\0 ".encode()
    start = file.getvalue().rstrip(b"\0")
    start += bytes(-len(start) % 512)
    content = start + plain + b"i" * 512 + header("d/b.cls", 1, kind=b"0") + b"1".ljust(512, b"\0")
    content += header("x", 12, kind=b"g") + b"12 size=512\n".ljust(512, b"\0")
    content += header("c.jpg") + b"j" * 512 + header("c.cls") + b"2".ljust(512) + bytes(1024)
    found = opened(tmp_path, {"x.tar": content})
    assert (names_of(found), found.labels.tolist()) == (["d/b.jpg", "c.jpg"], [1, 2])
    assert read(found) == [b"i" * 512, b"j" * 512]
    assert found.others == {"no ending": 2}


@pytest.mark.parametrize(
    ("files", "labels"),
    [
        ([("a.jpg", b"1"), ("a.cls", b" 12\n"), ("a.txt", b"a cat")], ["12"]),
        ([("a.PNG", b"1"), ("a.json", b'{"label": 4}'), ("._a.jpg", b"0"), ("b/.jpg", b"0")], ["4"]),
        ([("a.webp", b"1"), ("a.json", b'{"label": "cat"}'), ("b.jpg", b"1"), ("b.cls", b"dog")], ["cat", "dog"]),
        ([("a.cls", b"1"), ("b.cls", b"2"), ("b.jpg", b"1"), ("a.jpg", b"1")], ["2", "1"]),  # apart
        ([("a.cls", b"1"), ("a.json", b'{"label": "cat", "x": 1}'), ("a.jpg", b"1")], ["1"]),  # the name of number 1
        ([("a.cls", b"1"), ("a.jpg", b"1"), ("a.seg.png", b"1")], ["1"]),  # a mask beside the image
        ([("a.cls", b"1"), ("a.left.jpg", b"1"), ("b.cls", b"2"), ("b.jpg", b"")], ["1", "2"]),
        ([("b.cls", b"2"), ("b.jpg", b""), ("a.cls", b"1"), ("a.left.jpg", b"1")], ["2", "1"]),
        ([("a.cls", b"-1"), ("a.jpg", b"1"), ("b.cls", b"2"), ("b.jpg", b"")], ["2"]),
    ],
)
def test_labels_are_numbers_or_names(files: list[tuple[str, bytes]], labels: list[str], tmp_path: Path) -> None:
    found = opened(tmp_path, {"0.tar": tar(files)})
    assert [found.classes[label] for label in found.labels] == labels and (found.offsets[1:] > found.offsets[:-1]).all()
    hidden = sum(content == b"-1" for _, content in files)
    assert found.others.get("images with a label below 0", 0) == hidden


@pytest.mark.parametrize(
    ("labels", "beside", "classes"),
    [
        (["2", "0"], {}, ("0", "1", "2")),
        (["b", "a"], {"classnames.txt": b"cat\ndog"}, ("a", "b")),
        (["0"], {"classnames.txt": "\ufeffcat\ncrane\r\ncrane\n\n".encode()}, ("cat", "crane (1)", "crane (2)")),
        (["1"], {"_info.json": b'{"class_names": ["a", "b"]}'}, ("a", "b")),
    ],
)
def test_classes_have_names_of_a_file_or_of_the_labels(
    labels: list[str], beside: dict[str, bytes], classes: tuple[str, ...], tmp_path: Path
) -> None:
    assert opened(tmp_path, {"0.tar": labelled(*labels), **beside}).classes == classes


INFO = {"splits": {"train": {"filenames": ["0.tar", "1.tar"], "shard_lengths": [2, 1]}, "val": {}}}
INFO["splits"]["validation"] = {"filenames": ["2.tar"], "shard_lengths": [1]}
WIDS = {"__kind__": "wids-shard-index-v1", "shardlist": [{"url": "s3://b/0.tar", "nsamples": 2, "filesize": 9}]}
OF_INFO, OF_WIDS = json.dumps(INFO).encode(), json.dumps(WIDS).encode()


def test_missing_tars_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    two, one = labelled("0", "-1"), labelled("0")  # a hidden label is a sample too
    beside = {
        "nshards.txt": b"2\n",
        "x.json": b"[1]",
        "_info.json": OF_INFO,
        "9.json": OF_WIDS.replace(b"0.", b"9."),
    }
    opened(tmp_path / "a", {"0.tar": two, "1.tar": one, **beside})
    tree(tmp_path / "a/d", {"validation/2.tar": one, "_info.json": OF_INFO})
    open_index(tmp_path / "a/d", "val", tmp_path / "cache")
    assert not caplog.records
    tree(tmp_path / "a/d", {"validation/2.tar": two})
    with pytest.raises(DataError, match=r"2\.tar has 2 images, but _info\.json says 1 .*data\.root"):
        open_index(tmp_path / "a/d", "val", tmp_path / "cache")
    opened(tmp_path / "b", {"0.tar": two, "_info.json": OF_INFO})
    assert "1 of the 2 tars of _info.json, such as 1.tar" in caplog.text
    opened(tmp_path / "c", {"0.tar": two, "nshards.txt": b"3"})
    assert "1 of the 3 tars of nshards.txt: only" in caplog.text


WHOLE = tar(FILES)
REFUSED: list[tuple[bytes | list[tuple[str, bytes]] | dict[str, bytes], str]] = [
    (header("../x.jpg"), "'../x.jpg', which lies outside"),
    (header("/etc/x.jpg"), "'/etc/x.jpg', which lies outside"),
    (header("x.jpg", 2**62), "claims 4611686018427387904 bytes"),
    (header("x.jpg", -512), "claims -512 bytes"),
    (header("x.jpg", kind=tarfile.GNUTYPE_SPARSE), "sparse file 'x.jpg'"),
    (header("x", 2**62, tarfile.XHDTYPE), "a header claims 4611686018427387904 bytes"),
    (header("x", 9, tarfile.XHDTYPE) + b"9 size=-1".ljust(512, b"\0"), "records"),
    (header("x", 11, tarfile.XHDTYPE) + b"11 size=-1\n".ljust(512, b"\0") + header("x"), "size b'-1'"),
    (header("x", 11, tarfile.XHDTYPE) + b"-9 path=ab\n".ljust(512, b"\0") + header("x"), "records"),
    (header("x", kind=tarfile.XHDTYPE) * 4000, "in a row"),
    (header("x", kind=tarfile.XHDTYPE), "ends at byte 512"),
    (WHOLE[:9000], "cut off, or is still being written"),
    (WHOLE[:700], "ends at byte 700"),
    (WHOLE[:2048] + b"#" * 512 + WHOLE[2560:], "damaged: no header at byte"),
    (WHOLE + WHOLE, "goes on behind"),
    (b"not a tar file at all" * 100, "not a tar file"),
    (b"short", "not a tar file"),
    (b"\x1f\x8b\x08" + bytes(900), "gzip -d"),
    (header("a\x1b[2J.jpg", kind=b"2", linkname="x") + bytes(1024), r"a\x1b[2J.jpg', which is a link"),
    (
        header("x", 22, tarfile.XHDTYPE) + b"22 GNU.sparse.major=1\n".ljust(512, b"\0") + header("x.jpg"),
        "a sparse file",
    ),
    ([], "is empty"),
    ([("a.jpg", b"1"), ("b.jpg", b"1"), ("b.cls", b"1")], "1 of 2 images without a label (.cls"),
    ([("a.jpg", b"1"), ("a.txt", b"a cat")], "captions"),
    ([("a.npy", b"1"), ("b.image", b"1"), ("b.cls", b"1")], "no images but 1 .npy, 1 .image, 1 .cls"),
    ([("a.jpg", b"1"), ("a.png", b"1"), ("a.cls", b"1")], "'a.jpg' and 'a.png'"),
    ([("img.1.jpg", b"1"), ("img.2.jpg", b"1"), ("img.cls", b"1")], "first dot"),
    ([("a.jpg", b"1"), ("a.jpg", b"1"), ("a.cls", b"1")], "'a.jpg' twice"),
    ([("a.cls", b"1"), ("a.jpg", b"1"), ("a.cls", b"2")], "'a.cls' twice"),
    ([("a.cls", b"1"), ("a.json", b'{"label": 2}'), ("a.jpg", b"1")], "two labels for 'a': 1 in .cls and 2"),
    ([("a.cls", b"\x80\x04K\x01."), ("a.jpg", b"1")], "in 'a.cls'; expected the number"),
    ([("a.cls", b""), ("a.jpg", b"1")], "label b'' in 'a.cls'"),
    ([("a.cls", b"1" * 2**21), ("a.jpg", b"1")], "2097152 bytes in 'a.cls'"),
    ([("a.json", b'{"label": 1.5}'), ("a.jpg", b"1")], "label 1.5"),
    ([("a.json", b"[" * 100_000), ("a.jpg", b"1")], "no JSON"),
    (labelled("-1"), "only labels below 0"),
    (labelled("1000000"), "the label 1000000"),
    ({"0.tar": labelled("2"), "classnames.txt": b"cat\ndog"}, "but 2 classes have names"),
    ({"0.tar": labelled("0"), "1.tar": b""}, "train/1.tar, one of 2 tars, is empty"),
    ({"0.tar": labelled("0"), "1.tar": b"x" * 600}, "1.tar, one of 2 tars, is not a tar"),
    ({"0.tar": labelled("x"), "1.tar": labelled("0")}, "numbers and names"),
    ({"0.tar": labelled("0"), "index.json": OF_WIDS}, "index.json says 2"),
    ({"0.tar": labelled("0"), "nshards.txt": b"x"}, "nshards.txt"),
]


@pytest.mark.parametrize(("content", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_tars_that_cannot_be_used_are_one_line(
    content: bytes | list[tuple[str, bytes]] | dict[str, bytes], words: str, tmp_path: Path
) -> None:
    files = {"0.tar": tar(content) if isinstance(content, list) else content}
    with pytest.raises(DataError) as caught:
        opened(tmp_path, content if isinstance(content, dict) else files)
    assert words in str(caught.value) and "data.root" in str(caught.value) and str(caught.value).isprintable()


def test_damaged_bytes_are_refused_or_leave_all_images_inside_of_the_file(tmp_path: Path) -> None:
    rng = random.Random(0)
    for _ in range(200):
        content = bytearray(WHOLE)
        for _ in range(rng.choice((1, 30))):
            place = rng.randrange(0, len(content), 512) + rng.choice((0, 124, 130, 156, 257, 345, rng.randrange(512)))
            content[place % len(content)] = rng.randrange(256)
        try:
            found = opened(tmp_path, {"x.tar": bytes(content)})
        except DataError:
            continue
        ends = found.offsets + found.sizes
        assert (found.offsets >= 0).all() and (found.sizes >= 0).all() and (ends <= len(content)).all()

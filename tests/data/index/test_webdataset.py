"""Samples and labels of WebDataset tars, and what lies beside them."""

import io
import json

import pytest
import webdataset

from imagenet_opt.data.index.tar_members import TarError
from imagenet_opt.data.index.tar_samples import BELOW_ZERO, TarSamples, read_samples
from imagenet_opt.data.index.webdataset import class_names, compare, number_labels
from imagenet_opt.errors import DataError
from tests.data.index.tars import tar


def samples_of(content: bytes) -> TarSamples:
    return read_samples(lambda start, size: content[start : start + size], len(content))


def images(content: bytes) -> list[tuple[str, bytes]]:
    found = samples_of(content)
    places = zip(found.names, found.starts, found.sizes, strict=True)
    return [(name.decode(), content[start : start + size]) for name, start, size in places]


def test_webdatasets_own_tars_have_their_images_and_labels() -> None:
    file = io.BytesIO()
    with webdataset.TarWriter(file) as out:
        for i in range(5):
            key = f"n0{i}/part.of.path/{i:06d}"
            out.write({"__key__": key, "jpg": bytes([i]) * 700 * i, "cls": 3 * i, "json": {"label": 3 * i, "width": 4}})
    content = file.getvalue()
    assert images(content) == [(f"n0{i}/part.of.path/{i:06d}.jpg", bytes([i]) * 700 * i) for i in range(5)]
    assert samples_of(content).labels == [0, 3, 6, 9, 12]


@pytest.mark.parametrize(
    ("files", "labels"),
    [
        ([("a.jpg", b"1"), ("a.cls", b" 12\n"), ("a.txt", b"a cat")], [12]),
        ([("a.PNG", b"1"), ("a.json", b'{"label": 4}'), ("._a.jpg", b"0")], [4]),
        ([("a.webp", b"1"), ("a.json", b'{"label": "cat"}'), ("b.jpg", b"1"), ("b.cls", b"dog")], ["cat", "dog"]),
        ([("a.cls", b"1"), ("b.cls", b"2"), ("b.jpg", b"1"), ("a.jpg", b"1")], [2, 1]),  # apart
        ([("a.cls", b"1"), ("a.json", b'{"label": "cat", "x": 1}'), ("a.jpg", b"1")], [1]),  # the name of number 1
        ([("a.cls", b"1"), ("a.jpg", b"1"), ("a.seg.png", b"1")], [1]),  # a mask beside the image
        ([("a.cls", b"1"), ("a.left.jpg", b"1"), ("b.cls", b"2"), ("b.jpg", b"")], [1, 2]),
        ([("a.cls", b"-1"), ("a.jpg", b"1"), ("b.cls", b"2"), ("b.jpg", b"")], [2]),
    ],
)
def test_labels_are_numbers_or_names(files: list[tuple[str, bytes]], labels: list[object]) -> None:
    found = samples_of(tar(files))
    assert found.labels == labels and found.starts == sorted(found.starts)
    assert found.others[BELOW_ZERO] == sum(content == b"-1" for _, content in files)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "is empty"),
        ([("a.jpg", b"1"), ("b.jpg", b"1"), ("b.cls", b"1")], "1 of 2 images without a label (.cls"),
        ([("a.jpg", b"1"), ("a.txt", b"a cat")], "captions"),
        ([("a.npy", b"1"), ("b.image", b"1"), ("b.cls", b"1")], "no images but 1 .npy, 1 .image, 1 .cls"),
        ([("n01440764.tar", b"1")], "unpack"),
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
    ],
)
def test_a_tar_without_clear_labels_is_refused(files: list[tuple[str, bytes]], words: str) -> None:
    with pytest.raises(TarError) as caught:
        samples_of(tar(files))
    assert words in str(caught.value)


def test_classes_are_numbers_names_of_a_file_or_the_labels_themselves() -> None:
    positions, classes = number_labels([2, 0, 2], (), "p")
    assert positions.tolist() == [2, 0, 2] and classes == ("0", "1", "2")
    names = class_names({"classnames.txt": "\ufeffcat\ncrane\r\ncrane\n\n".encode()})
    assert names == ("cat", "crane (1)", "crane (2)") and number_labels([0], names, "p")[1] == names
    assert class_names({"_info.json": json.dumps({"class_names": ["a", "b"]}).encode()}) == ("a", "b")
    positions, classes = number_labels(["b", "a", "b"], names, "p")
    assert positions.tolist() == [1, 0, 1] and classes == ("a", "b")
    for labels, given in (([1, "a"], ()), ([3], names), ([10**9], ())):
        with pytest.raises(DataError, match=r"data\.root"):
            number_labels(labels, given, "p")


OF_TRAIN = {"filenames": ["t-0.tar", "t-1.tar"], "shard_lengths": [3, 4]}
INFO = {"splits": {"train": OF_TRAIN, "validation": {"filenames": ["v-0.tar"], "shard_lengths": [2]}}}
WIDS = {"__kind__": "wids-shard-index-v1", "shardlist": [{"url": "s3://b/t-0.tar", "nsamples": 3, "filesize": 9}]}


def test_numbers_of_samples_and_of_tars_are_compared(caplog: pytest.LogCaptureFixture) -> None:
    info, wids = ({name: json.dumps(about).encode()} for name, about in (("_info.json", INFO), ("any.json", WIDS)))
    for files in (info, wids):
        with pytest.raises(DataError, match=r"p/t-0\.tar has 2 images, but .*json says 3"):
            compare(files, "train", {"t-0.tar": 2}, "p")
    everything = {"nshards.txt": b"2\n", "labels.json": b"[1]", **info}
    assert compare(everything, "train", {"t-0.tar": 3, "t-1.tar": 4}, "p") == {"t-0.tar", "t-1.tar"}
    assert compare(info, "val", {"v-0.tar": 2}, "p") == {"v-0.tar"} and not caplog.records
    compare(info, "train", {"t-0.tar": 3}, "p")
    assert "1 of the 2 tars of _info.json, such as t-1.tar" in caplog.text
    compare({"nshards.txt": b"3"}, "train", {"t-0.tar": 3}, "p")
    assert "1 of the 3 tars of nshards.txt: only" in caplog.text
    with pytest.raises(DataError, match=r"nshards.txt .*data\.root"):
        compare({"nshards.txt": b"x"}, "train", {}, "p")

"""The samples, names and order of a pack."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from imagenet_opt.data.index.shard_index import open_shards
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from tests.pack.packs import SMALL, jpeg, names_of, png, read, samples, small_tree, tree


def test_webdataset_decodes_images_and_labels(images_root: Path, tmp_path: Path) -> None:
    pack(images_root, tmp_path / "out", PackOptions(shard_mb=0.03))
    for split in ("train", "val"):
        index = open_shards(tmp_path / "out" / split)
        actual = samples(index.folder, lambda read: read.decode("pil").to_tuple("jpg;png", "cls"))
        assert [label for _, label in actual] == index.labels.tolist()
        for (image, _), name in zip(actual, names_of(index), strict=True):
            with Image.open(images_root / split / name) as expected:
                assert np.array_equal(image, expected.convert("RGB"))


def test_odd_names_and_links_are_packed(tmp_path: Path) -> None:
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
    actual = samples(tmp_path / "out/val")
    assert len({sample["__key__"] for sample in actual}) == len(expected)
    assert [sample.get("jpg") or sample["png"] for sample in actual] == read(index)
    classes = [index.classes[int(sample["cls"])] for sample in actual]
    assert classes == [name.split("/")[0] for name in names_of(index)]


def test_a_class_name_that_is_not_utf_8_is_escaped(tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    for split in ("train", "val"):
        (root / split / "a").rename(root / split / "caf\udce9")
    assert pack(root, tmp_path / "out", SMALL).images == 16
    index = open_shards(tmp_path / "out/val")
    assert index.classes == ("b", "caf\\xe9") and names_of(index)[-1] == "caf\udce9/3.JPEG"
    assert pack(root, tmp_path / "out", SMALL).images_seen == 0


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

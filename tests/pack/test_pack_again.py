"""A finished pack is compared with its checksums, and the same pack command again keeps, repairs and refuses."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from imagenet_opt.data.index.shard_index import open_shards
from imagenet_opt.errors import ConfigError, ShardMismatch
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from imagenet_opt.pack.verify import open_packed, verify
from tests.pack.packs import SMALL, contents, small_tree, tree


def test_a_plan_of_an_earlier_version_and_a_moved_source_are_the_same(tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    pack(root, tmp_path / "out", SMALL)
    for file in (tmp_path / "out").glob("*/plan.json"):
        plan = json.loads(file.read_text())
        plan["options"] = {"max_side": None, "shard_mb": 0.02, "seed": 0}
        file.write_text(json.dumps(plan))
    assert pack(root.rename(tmp_path / "moved"), tmp_path / "out", SMALL).images_seen == 0


@pytest.mark.parametrize("change", ["a file more", "another class", "another size", "other options"])
def test_other_images_and_options_are_refused(change: str, tmp_path: Path) -> None:
    root, options, words = small_tree(tmp_path / "data"), SMALL, "the images have other names, labels or sizes"
    pack(root, tmp_path / "out", SMALL)
    before, image = contents(tmp_path / "out"), root / "train/a/0.JPEG"
    match change:
        case "a file more":
            shutil.copy(image, root / "train/a/9.JPEG")
        case "another class":
            image.rename(root / "train/b/9.JPEG")
        case "another size":
            image.write_bytes(image.read_bytes() + b"\0")
        case "other options":
            options, words = (
                PackOptions(shard_mb=0.02, max_side=16),
                "with quality=90, .* with max_side=16, .*out=FOLDER",
            )
    with pytest.raises(ConfigError, match=words):
        pack(root, tmp_path / "out", options)
    assert contents(tmp_path / "out") == before


def test_what_a_pack_into_a_folder_refuses(out: Path, tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"is packed already; set data\.root"):
        pack(out, tmp_path / "new", SMALL)
    with pytest.raises(ConfigError, match="leave val_labels out"):
        pack(root, tmp_path / "new", SMALL, val_labels=tmp_path / "labels.txt")
    (tmp_path / "link").symlink_to(root)
    for out in ("data/train/out", "data/..", "link/out"):
        with pytest.raises(ConfigError, match=r"out=.* \(data\.root\) overlap"):
            pack(root, tmp_path / out, SMALL)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"cannot write into .*file/out \(Not a directory\); .*out=FOLDER"):
        pack(root, tmp_path / "file/out", SMALL)
    assert {path.name for path in root.iterdir()} == {"train", "val"}


FACTS = '"format": 1, "fingerprint": "x", "folder": "x", "options": {}, "images": 8'
PLANS = ("[]", f"{{{FACTS}}}", f'{{{FACTS}, "num_shards": 1000000000000}}', "[" * 100_000)


@pytest.mark.parametrize(
    ("file", "content"), [("val/thesis.txt", "x"), *(("train/plan.json", plan) for plan in PLANS)], ids=range(5)
)
def test_other_files_and_damaged_plans_in_out_are_left_alone(file: str, content: str, tmp_path: Path) -> None:
    tree(tmp_path / "out", {file: content.encode()})
    with pytest.raises(ConfigError, match=rf"out/{file.split('/')[0]} is not empty and has no plan\.json to resume"):
        pack(small_tree(tmp_path / "data"), tmp_path / "out", SMALL)
    assert contents(tmp_path / "out") == {file: content.encode(), "claim": b""}


@pytest.mark.parametrize(
    "damage", ["lost", "cut", "lost column", "lost index", "half of an index", "damaged part", "leftovers"]
)
def test_packing_again_repairs_a_pack(damage: str, out: Path, whole: Path, images_root: Path) -> None:
    folder, images_seen = out / "train", 39
    match damage:
        case "lost":
            (folder / "shard-00001.tar").unlink()
            images_seen = int((open_shards(whole / "train").container_ids == 1).sum())
        case "cut":
            os.truncate(folder / "shard-00001.tar", 5000)
            images_seen = int((open_shards(whole / "train").container_ids == 1).sum())
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


def test_a_shard_of_changed_images_is_not_restored(tmp_path: Path) -> None:
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


def test_each_damaged_shard_is_named(out: Path) -> None:
    index, folder = open_shards(out / "train"), out / "train"
    with open(folder / index.containers[0], "r+b") as file:
        file.seek(int(index.offsets[1]) + 30)
        file.write(b"\x55\xaa\x55")
    os.truncate(folder / index.containers[2], 700)
    (folder / index.containers[3]).unlink()
    changed, cut, lost = verify(open_packed(folder), 2)
    assert changed == f"{folder}/shard-00000.tar: the bytes do not match the checksum"
    assert cut.startswith(f"{folder}/shard-00002.tar: 700 bytes, not ")
    assert lost == f"{folder}/shard-00003.tar: No such file or directory"
    checksums = folder / "checksums.npy"
    checksums.write_bytes(checksums.read_bytes()[:-1] + bytes([checksums.read_bytes()[-1] ^ 1]))
    with pytest.raises(ShardMismatch, match=r"checksums\.npy is damaged"):
        open_packed(folder)

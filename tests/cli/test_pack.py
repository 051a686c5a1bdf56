"""The pack command: its output and its arguments."""

import shutil
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from imagenet_opt.cli.pack import main, parse
from imagenet_opt.data.index.shard_index import is_packed, open_shards
from imagenet_opt.errors import ShardMismatch
from imagenet_opt.pack.image import PackOptions
from tests.pack.packs import jpeg, small_tree


@pytest.mark.slow
def test_a_pack_is_one_line_opens_and_verifies(
    images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (tmp_path / "data").symlink_to(images_root)
    main([f"data.root={tmp_path}/data", f"out={out}", "shard_mb=0.03", "workers=1"])
    printed, sources, made = capsys.readouterr(), images_root.glob("*/*/*"), out.glob("*/*.tar")
    megabytes = [f"{sum(path.stat().st_size for path in paths) / 1e6:.2f} MB" for paths in (sources, made)]
    assert f"78 images, 0 rejected, {megabytes[0]} in, {megabytes[1]} out" in printed.out
    assert printed.out.count("\n") == 1 and len(printed.err.splitlines()) <= 10
    assert all(is_packed(out / split) and len(open_shards(out / split)) == 39 for split in ("train", "val"))
    main([f"out={out}", "--verify"])
    assert "78 images" in capsys.readouterr().out

    index = open_shards(out / "val")
    with open(out / "val/shard-00000.tar", "r+b") as file:
        file.seek(int(index.offsets[2]) + 300)
        file.write(b"damaged")
    with pytest.raises(ShardMismatch, match=rf"^1 .*{out} \(out\)"):
        main([f"out={out}", "--verify"])
    assert capsys.readouterr().out.startswith(f"{out}/val/shard-00000.tar: ")


def test_folders_sizes_and_labels_are_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = small_tree(tmp_path / "data")
    (root / "train").rename(root / "training")
    shutil.rmtree(root / "val")
    (root / "flat").mkdir()
    (root / "flat/one.JPEG").write_bytes(jpeg(seed=9))
    (tmp_path / "labels.txt").write_text("one.JPEG b\n")
    words = ["data.train_folder=training", "data.val_folder=flat", f"val_labels={tmp_path}/labels.txt", "max_side=16"]
    main([f"data.root={root}", f"out={tmp_path}/out", *words])
    assert open_shards(tmp_path / "out/val").labels.tolist() == [1]
    index = open_shards(tmp_path / "out/train")
    with tarfile.open(index.folder / index.containers[0]) as archive:
        sizes = [Image.open(archive.extractfile(member)).size for member in archive if member.name.endswith(".jpg")]
    assert sizes == [(16, 12)] * 8


def test_a_preset_is_for_a_width_of_training_images() -> None:
    options = parse(["data.root=a", "out=b", "for=176", "quality=80", "max_side=300"]).options
    assert options == PackOptions(max_side=300, quality=80, reencode="all")
    assert parse(["data.root=a", "out=b", "for=224"]).options == PackOptions(max_side=500, reencode="all")

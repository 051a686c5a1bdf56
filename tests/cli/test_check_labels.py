"""Folders of val/ are compared with what a trained network predicts."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from imagenet_opt.data.index.folder_index import scan_split
from imagenet_opt.data.loader import RankInfo, train_loader
from imagenet_opt.model.network import build_network
from tests.cli.conftest import Check
from tests.conftest import loading, write_images

SIZE = 32


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    root = write_images(folder / "data", num_classes=3, per_class=12, seed=9)
    torch.manual_seed(0)
    network = build_network("test_resnet", num_classes=3)
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3)
    loader = train_loader(scan_split(root, "train"), loading(batch_size=12), RankInfo(device=torch.device("cpu")))
    for epoch in range(12):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            cross_entropy(network(batch.images), batch.labels).backward()
            optimizer.step()
    loader.close()
    recipe = {"name": "test_resnet", "num_classes": 3, "blurpool": False, "small_stem": False, "image_size": SIZE}
    recipe |= {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    torch.save({"network": network.state_dict(), "network_config": recipe, "global_step": 1}, folder / "last.ckpt")
    return folder / "last.ckpt"


def test_folders_of_val_that_hold_other_classes_are_named(check: Check, ckpt: Path, root: Path) -> None:
    for old, new in (("class0", "moved"), ("class1", "class0"), ("class2", "class1"), ("moved", "class2")):
        (root / "val" / old).rename(root / "val" / new)
    status, verdicts, _ = check(f"ckpt={ckpt}")
    assert status == 1 and verdicts["labels"]["level"] == "error"
    assert "the folders hold other classes than their names say" in str(verdicts["labels"]["text"])
    assert sorted(verdicts["labels"]["details"]) == [
        f"{root}/val/class0 seems to hold class1",
        f"{root}/val/class1 seems to hold class2",
        f"{root}/val/class2 seems to hold class0",
    ]

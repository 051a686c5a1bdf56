"""A snapshot of what is on the GPU, taken while it computes."""

import torch

from imagenet_opt.run.checkpoint.writer import HostCopy


def test_it_holds_what_was_there_when_it_was_taken() -> None:
    weight = torch.zeros(64 * 2**20, device="cuda")
    snapshots = []
    for _ in range(4):
        weight += 1
        snapshots.append(HostCopy({"weight": weight, "same": weight}))
    for i, snapshot in enumerate(snapshots, 1):
        snapshot.wait()
        assert snapshot.state["weight"] is snapshot.state["same"]
        assert snapshot.state["weight"].device.type == "cpu"
        assert snapshot.state["weight"].min() == snapshot.state["weight"].max() == i

"""A snapshot is plain, shares nothing with the run, and keeps what is one tensor one."""

from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import torch

from imagenet_opt.run.checkpoint.writer import HostCopy


def test_a_copy_does_not_change_and_keeps_shared_tensors_shared() -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    state = OrderedDict(weights=OrderedDict(a=weight.detach()), network={"a": weight.detach()}, row=weight[1])
    snapshot = HostCopy(state)
    weight.zero_()
    assert snapshot.state["weights"]["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert snapshot.state["network"]["a"] is snapshot.state["weights"]["a"]
    assert snapshot.state["row"].tolist() == [3, 4, 5]
    assert snapshot.num_bytes == (6 + 3) * 4
    assert type(snapshot.state) is type(snapshot.state["weights"]) is dict


def test_numbers_of_numpy_and_kinds_of_dicts_become_plain_and_the_file_opens_safely(tmp_path: Path) -> None:
    numbers = (np.float64(0.5), np.int64(3), True, None)
    snapshot = HostCopy({"numbers": numbers, "shape": torch.Size([2]), "d": defaultdict(int, a=1)})
    assert snapshot.state == {"numbers": (0.5, 3, True, None), "shape": (2,), "d": {"a": 1}}
    assert [type(number) for number in snapshot.state["numbers"]] == [float, int, bool, type(None)]
    assert snapshot.foreign == []
    torch.save(snapshot.state, tmp_path / "x.ckpt")
    assert torch.load(tmp_path / "x.ckpt", weights_only=True) == snapshot.state


def test_objects_that_cannot_be_opened_safely_are_named(tmp_path: Path) -> None:
    names = ["a"]
    snapshot = HostCopy({"callbacks": {"Mine": {"folder": tmp_path, "names": {1, 2}, "rest": [names]}}})
    names.append("b")
    assert snapshot.foreign == ["/callbacks/Mine/folder (PosixPath)", "/callbacks/Mine/names (set)"]
    assert snapshot.state["callbacks"]["Mine"] == {"folder": tmp_path, "names": {1, 2}, "rest": [["a"]]}

"""The host queues no further step until the device has begun the one two before."""

from typing import Any

import pytest
import torch

from imagenet_opt.model.steps_ahead import StepsAhead
from tests.model.conftest import batches, fit, network


def test_a_step_is_queued_once_the_device_has_begun_the_one_two_before(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Event:
        num = 0

        def __init__(self, **_: Any) -> None:
            self.step, Event.num = Event.num, Event.num + 1

        def record(self) -> None:
            happened.append(f"mark {self.step}")

        def synchronize(self) -> None:
            happened.append(f"wait for {self.step}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(
        "imagenet_opt.model.classifier.StepsAhead", lambda device: StepsAhead(torch.device("cuda", device.index or 0))
    )
    net = network()
    net.register_forward_pre_hook(lambda net, _: happened.append("train" if net.training else "validate"))
    fit(net, batches(4), max_epochs=1)
    assert happened == [
        *("mark 0", "train", "mark 1", "train"),
        *("mark 2", "wait for 0", "train", "mark 3", "wait for 1", "train"),
        *("mark 4", "wait for 2", "validate"),
    ]

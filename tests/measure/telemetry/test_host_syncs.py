"""Each wait is counted with its line, and an ordinary step has no waits. All tensors here count as on the device."""

import linecache
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from imagenet_opt.measure.telemetry.host_syncs import HostSyncs, Wait
from tests.conftest import quiet_trainer

x = torch.arange(6.0)
mask = x > 3
one = torch.tensor(1)
host = torch.zeros(6)


def waits_of(action: Callable[[], Any]) -> tuple[Counter[Wait], list[int]]:
    """Number of each wait, and the bytes of all waits; only `host` is on the host."""
    copied: list[int] = []
    with HostSyncs(copied.append, lambda tensor: tensor is not host) as waits:
        action()
    return waits.counts, copied


WAITING: list[tuple[str, int, Callable[[], Any]]] = [
    ("item", 4, lambda: x.mean().item()),
    ("tolist", 24, lambda: x.tolist()),
    ("cpu", 24, lambda: x.cpu()),
    ("numpy", 24, lambda: x.numpy()),
    ("__array__", 24, lambda: np.asarray(x)),
    ("__bool__", 1, lambda: "big" if x.sum() > 3 else "small"),
    ("__float__", 8, lambda: float(one)),
    ("__int__", 8, lambda: int(one)),
    ("__index__", 8, lambda: range(one)),
    ("to", 24, lambda: x.to("cpu")),
    ("to", 24, lambda: x.to(device="cpu")),
    ("to", 24, lambda: x.to("cpu", torch.float64)),
    ("to", 24, lambda: x.to(host)),
    ("nonzero", 8, lambda: x.nonzero()),
    ("nonzero", 8, lambda: torch.nonzero(input=x)),
    ("where", 8, lambda: torch.where(mask)),
    ("masked_select", 8, lambda: x.masked_select(mask)),
    ("masked_select", 8, lambda: torch.masked_select(x, mask)),
    ("argwhere", 8, lambda: torch.argwhere(x)),
    ("__getitem__", 8, lambda: x[mask]),
    ("__getitem__", 8, lambda: x[None][:, mask]),
    ("__getitem__", 8, lambda: x[one]),
    ("__getitem__", 8, lambda: x[:one]),
    ("__setitem__", 8, lambda: host.__setitem__(mask, torch.ones(2))),
    ("unique", 8, lambda: x.unique()),
    ("unique", 8, lambda: torch.unique(x, return_counts=True)),
    ("unique_consecutive", 8, lambda: torch.unique_consecutive(x)),
    ("bincount", 8, lambda: torch.bincount(one[None])),
    ("repeat_interleave", 8, lambda: x.repeat_interleave(one)),
    ("repeat_interleave", 8, lambda: torch.repeat_interleave(x, repeats=one)),
    ("repeat_interleave", 8, lambda: x.repeat_interleave(one, 0)),
    ("equal", 1, lambda: torch.equal(x, x)),
    ("equal", 1, lambda: x.equal(x)),
    ("allclose", 1, lambda: torch.allclose(x, x)),
    ("is_nonzero", 8, lambda: torch.is_nonzero(one)),
    ("__contains__", 1, lambda: 1 in x),
    ("__repr__", 24, lambda: str(x)),
    ("__format__", 8, lambda: f"{one:.3f}"),
    ("copy_", 24, lambda: host.copy_(x)),
    ("copy_", 24, lambda: host.copy_(other=x)),
    ("copy_", 24, lambda: torch.zeros(6).copy_(host)),
]


@pytest.mark.parametrize(("operation", "num_bytes", "action"), WAITING, ids=lambda value: str(value)[:20])
def test_a_wait_is_counted_with_its_bytes_and_its_line(
    operation: str, num_bytes: int, action: Callable[[], Any]
) -> None:
    line = action.__code__.co_firstlineno
    code = linecache.getline(__file__, line).strip()
    assert waits_of(action) == ({Wait(operation, f"test_host_syncs.py:{line}", code): 1}, [num_bytes])
    assert code.startswith(f'("{operation}", {num_bytes}, lambda: ')


QUIET: list[Callable[[], Any]] = [
    lambda: x.to(torch.float64),
    lambda: x.to(x.device),
    lambda: x.to(x),
    lambda: x.to("cpu", non_blocking=True),
    lambda: x.clone().copy_(x),
    lambda: host.copy_(x, non_blocking=True),
    lambda: host.copy_(x, True),
    lambda: host.copy_(non_blocking=True, other=x),
    lambda: torch.where(mask, x, x),
    lambda: x.repeat_interleave(2),
    lambda: x.repeat_interleave(one, output_size=6),
    lambda: x[1:3],
    lambda: x[torch.tensor([1, 2])],
    lambda: x.clone().__setitem__(mask, 0.0),
    lambda: (host.item if host.numel() == 1 else host.cpu)(),
    lambda: [host.tolist(), str(host), host[0:2].shape],
    lambda: torch.empty(0).cpu(),
    lambda: (x.shape, x.device, len(x), x.numel(), list(x)),
]


@pytest.mark.parametrize("action", QUIET, ids=lambda action: str(action.__code__.co_firstlineno))
def test_an_action_without_a_value_on_the_host_is_no_wait(action: Callable[[], Any]) -> None:
    assert waits_of(action) == ({}, [])


def test_a_loop_over_samples_counts_each_sample() -> None:
    images = torch.zeros(16, 3, 2, 2)
    counts, copied = waits_of(lambda: [image.cpu() for image in images])
    assert (list(counts.values()), copied) == ([16], [48] * 16)


def test_the_line_is_the_users_and_waits_outside_do_not_count() -> None:
    record = logging.LogRecord("user", logging.INFO, "user.py", 1, "loss %s", (one,), None)
    with HostSyncs() as waits:
        logging.Formatter().format(record)
    one.item()
    assert [wait.code for wait in waits.counts] == ["logging.Formatter().format(record)"]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("foreach", [True, False])
def test_an_ordinary_step_has_no_waits(optimizer: Any, foreach: bool) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    stepper = optimizer(net.parameters(), lr=0.1, foreach=foreach)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(stepper, 10)
    with HostSyncs() as waits:
        for _ in range(3):
            loss = nn.functional.cross_entropy(net(torch.randn(2, 3, 8, 8)), torch.tensor([1, 4]), label_smoothing=0.1)
            stepper.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            stepper.step()
            schedule.step()
    assert not waits.counts


class Logging(pl.LightningModule):
    """Logs its loss as a tensor; with `reads`, each step also reads it."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.net, self.reads, self.waits = nn.Linear(3, 1), reads, HostSyncs()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.net(batch).mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        if self.reads:
            self.log("read", loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.waits.__enter__()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.waits.__exit__(None, None, None)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize(("reads", "expected"), [(False, {}), (True, {'self.log("read", loss.item())': 4})])
def test_steps_of_lightning(reads: bool, expected: dict[str, int], tmp_path) -> None:
    module = Logging(reads)
    trainer = quiet_trainer(max_steps=4, default_root_dir=tmp_path)
    trainer.fit(module, torch.utils.data.DataLoader(torch.zeros(8, 3), batch_size=2))
    assert {wait.code: count for wait, count in module.waits.counts.items()} == expected


def test_a_compiled_network_stays_whole() -> None:
    net = torch.compile(nn.Linear(6, 1), fullgraph=True, backend="eager")
    with HostSyncs() as waits:
        net(x)
        net(x).item()
    assert [wait.code for wait in waits.counts] == ["net(x).item()"]

"""Each wait is counted with its line. All tensors here count as on the device."""

import linecache
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from imagenet_opt.measure.telemetry.host_syncs import HostSyncs, Wait

x = torch.arange(6.0)
mask = x > 3
one = torch.tensor(1)
host = torch.zeros(6)


def waits_of(action: Callable[[], Any]) -> Counter[Wait]:
    """Number of each wait; only `host` is on the host."""
    with HostSyncs(on_device=lambda tensor: tensor is not host) as waits:
        action()
    return waits.counts


WAITING: list[tuple[str, Callable[[], Any]]] = [
    ("item", lambda: x.mean().item()),
    ("cpu", lambda: [image.cpu() for image in x[None]]),
    ("__array__", lambda: np.asarray(x)),
    ("__bool__", lambda: "big" if x.sum() > 3 else "small"),
    ("to", lambda: x.to("cpu", torch.float64)),
    ("to", lambda: x.to(host)),
    ("nonzero", lambda: torch.nonzero(input=x)),
    ("where", lambda: torch.where(mask)),
    ("__getitem__", lambda: x[None][:, mask]),
    ("__getitem__", lambda: x[one]),
    ("__setitem__", lambda: host.__setitem__(mask, torch.ones(2))),
    ("__repr__", lambda: str(x)),
    ("__format__", lambda: f"{one:.3f}"),
    ("copy_", lambda: host.copy_(other=x)),
    ("copy_", lambda: torch.zeros(6).copy_(host)),
]


@pytest.mark.parametrize(("operation", "action"), WAITING, ids=lambda value: str(value)[:20])
def test_a_wait_is_counted_with_its_line(operation: str, action: Callable[[], Any]) -> None:
    line = action.__code__.co_firstlineno
    code = linecache.getline(__file__, line).strip()
    assert waits_of(action) == {Wait(operation, f"test_host_syncs.py:{line}", code): 1}
    assert code.startswith(f'("{operation}", lambda: ')


QUIET: list[Callable[[], Any]] = [
    lambda: [x.to(torch.float64), x.to(x.device), x.to(x)],
    lambda: x.to("cpu", non_blocking=True),
    lambda: x.clone().copy_(x),
    lambda: [host.copy_(x, True), host.copy_(non_blocking=True, other=x)],
    lambda: torch.where(mask, x, x),
    lambda: [x[1:3], x[torch.tensor([1, 2])]],
    lambda: x.clone().__setitem__(mask, 0.0),
    lambda: [host.tolist(), host.cpu(), str(host), host[0:2].shape],
    lambda: (x.shape, x.device, len(x), x.numel(), list(x)),
]


@pytest.mark.parametrize("action", QUIET, ids=lambda action: str(action.__code__.co_firstlineno))
def test_an_action_without_a_value_on_the_host_is_no_wait(action: Callable[[], Any]) -> None:
    assert not waits_of(action)


def test_the_line_is_the_users_and_waits_outside_do_not_count() -> None:
    net = torch.compile(nn.Linear(6, 1), fullgraph=True, backend="eager")  # which stays whole
    record = logging.LogRecord("user", logging.INFO, "user.py", 1, "loss %s", (one,), None)
    with HostSyncs() as waits:
        logging.Formatter().format(record)
        net(x).item()
    one.item()
    lines = ["logging.Formatter().format(record)", "net(x).item()"]
    assert [wait.code for wait in waits.counts] == lines

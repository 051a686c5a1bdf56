"""Copies to a device that copies late, as a GPU may: what arrives, and when the workers' memory is free again."""

import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor

from imagenet_opt.data.batch import Batch, LoadStats, RaggedBatch
from imagenet_opt.data.device_copies import DeviceCopies
from imagenet_opt.data.keys import BatchKey
from imagenet_opt.data.shared_buffers import Lease, LockedSlots, SharedBufferPool, shared_bytes
from imagenet_opt.measure.telemetry.cuda_clock import CudaClock
from tests.data.conftest import CPU, MakeLoader, assert_equal, batches

FACTS = (BatchKey(0, 0, 4), LoadStats(0, 0, 0, 0, 1, 0, (), Counter()))


class LateDevice:
    """torch's CUDA calls on a CPU. A copy that does not block is made only when an event is waited for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.late: deque[tuple[Tensor, Tensor]] = deque()
        self.registered: dict[int, int] = {}
        self.log: list[str] = []
        self.before_copies: Callable[[], None] = lambda: None
        self.refusal = ""
        self.lock = threading.Lock()
        self.events: WeakSet[Any] = WeakSet()
        blocking = torch.Tensor.to

        def to(tensor: Tensor, *args: Any, non_blocking: bool = False, **kwargs: Any) -> Tensor:
            if not non_blocking:
                return blocking(tensor, *args, **kwargs)
            self.late.append((torch.empty_like(tensor), tensor))
            return self.late[-1][0]

        patch.setattr(torch.Tensor, "to", to)
        patch.setattr(torch.Tensor, "pin_memory", self.pinned)
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        patch.setattr(torch.cuda, "Event", self.event)
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        patch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(wait_event=lambda event: self.wait()))
        patch.setattr(torch.cuda, "set_device", lambda _: None)
        error = SimpleNamespace(success="")
        runtime = SimpleNamespace(
            cudaHostRegister=self.register, cudaHostUnregister=self.unregister, cudaError=error, cudaGetErrorString=str
        )
        patch.setattr(torch.cuda, "cudart", lambda: runtime)

    def event(self, **_: Any) -> Any:
        calls = {"record": lambda _: None, "synchronize": lambda _: self.wait()}
        made = type("Event", (), calls | {"query": lambda _: True, "elapsed_time": lambda *_: 1.0})()
        self.events.add(made)
        return made

    def wait(self) -> None:
        with self.lock:
            if self.late:
                self.before_copies()
            while self.late:
                target, source = self.late.popleft()
                target.copy_(source)

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor if self.is_pinned(tensor) else tensor.clone()

    def is_pinned(self, tensor: Tensor) -> bool:
        return any(start <= tensor.data_ptr() < start + size for start, size in self.registered.items())

    def register(self, address: int, num_bytes: int, flags: int) -> str:
        self.log.append("register")
        if not self.refusal:
            self.registered[address] = num_bytes
        return self.refusal

    def unregister(self, address: int) -> None:
        assert f"{address:x}-" in Path("/proc/self/maps").read_text(), "unmapped while it was registered"
        self.log.append("unregister")
        del self.registered[address]

    def copies(self, mode: str, buffers: SharedBufferPool) -> DeviceCopies:
        copies = DeviceCopies(CPU, mode, buffers)
        copies._stream, copies._clock = SimpleNamespace(device=CPU), CudaClock()
        return copies


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    return LateDevice(monkeypatch)


@pytest.mark.parametrize(("mode", "refusal"), [("ahead", ""), ("registered", ""), ("registered", "not supported")])
def test_batches_arrive_whole_also_after_an_epoch_that_ends_early(
    images_root: Path,
    loader: MakeLoader,
    device: LateDevice,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    refusal: str,
) -> None:
    expected = batches(loader(images_root, resize_on="device"))
    made = loader(images_root, num_workers=2, prefetch_factor=1, resize_on="device")
    made.copies, device.refusal = device.copies(mode, made.buffers), refusal
    for stop in (1, 3, 6):
        made.sampler.seek(1, 0)
        assert_equal([batch for _, batch in zip(range(stop), made, strict=False)], expected[:stop])
    assert len(device.registered) == (device.log.count("register") if mode == "registered" and not refusal else 0)
    assert bool(device.registered) == (mode == "registered" and not refusal)
    warnings = [record.getMessage() for record in caplog.records if "page-locked" in record.getMessage()]
    assert len(warnings) == bool(refusal)
    assert all("data.copies=registered" in line and "not supported" in line for line in warnings)
    assert device.log.count("register") <= 1 or not refusal
    made.close()
    assert not device.registered


def test_events_of_finished_copies_are_freed_although_nobody_reads_the_metrics(
    images_root: Path, loader: MakeLoader, device: LateDevice
) -> None:
    made = loader(images_root)
    made.copies = device.copies("pinned", made.buffers)
    assert len(batches(made)) == 6
    assert len(device.events) <= 2  # of the last copy
    assert made.pop_metrics()["loader/copy_seconds"] == 0.001


def image_batch(lease: Lease | None, images: Tensor) -> Batch:
    labels, indices = torch.arange(len(images)), torch.arange(len(images)) + 100
    return Batch(labels, indices, torch.ones(len(images), dtype=torch.bool), *FACTS, lease, images)


def test_a_slot_is_free_only_after_its_copy(device: LateDevice) -> None:
    buffers = SharedBufferPool(num_workers=1, depth=2)
    buffers.holding[0, 1] = 7
    held: list[int] = []
    device.before_copies = lambda: held.append(int(buffers.holding[0, 1]))
    images = shared_bytes(3 * 48).view(3, 3, 4, 4).fill_(9)
    sent, _ = device.copies("registered", buffers).send(image_batch(Lease(0, 1, 7), images))
    assert held == [7]
    assert int(buffers.holding[0, 1]) == 0
    images.zero_()  # the worker's next batch
    assert (sent.data == 9).all()
    assert sent.lease is None


def test_a_mapping_is_registered_once_and_unregistered_before_it_goes(device: LateDevice) -> None:
    slots, lease, first = LockedSlots(), Lease(0, 0, 1), shared_bytes(4096)
    assert slots.hold(lease, first[:10])
    assert slots.hold(Lease(0, 0, 2), first)
    assert device.log == ["register"]
    del first
    assert slots.hold(Lease(0, 0, 3), shared_bytes(8192))  # the worker needed a larger slot
    assert slots.hold(Lease(1, 0, 1), shared_bytes(4096))
    assert device.log == ["register", "unregister", "register", "register"]
    assert sorted(device.registered.values()) == [4096, 8192]
    del slots  # a loader that nobody has closed
    assert device.registered == {}


def test_small_tensors_travel_as_one_block(device: LateDevice) -> None:
    """Each has its dtype, shape and values, and a place where tensors of the dtype may begin."""
    num = 5
    sizes = torch.arange(2 * num, dtype=torch.int32).view(2, num)
    small = (torch.arange(num), torch.arange(num) - 5, torch.arange(num) % 2 == 0)
    ragged = {"offsets": torch.arange(num) * 7, "flips": small[2].clone(), "windows": torch.rand(num, 4)}
    batch = RaggedBatch(*small, *FACTS, None, shared_bytes(64).fill_(3), *sizes, **ragged)
    shared = batch.share_memory()
    sent = shared.to("cpu", non_blocking=True)
    assert len(device.late) == 2  # pixels, and all others
    device.wait()
    for name, tensor in batch._tensors().items():
        actual = getattr(sent, name)
        assert torch.equal(actual, tensor)
        assert (actual.dtype, actual.shape) == (tensor.dtype, tensor.shape)
        assert actual.data_ptr() % 16 == 0
    apart = batch.clone()  # heights and widths share memory here
    assert torch.equal(apart.widths, batch.widths)
    assert apart.widths.data_ptr() != batch.widths.data_ptr()

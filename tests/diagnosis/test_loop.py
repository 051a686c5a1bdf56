"""Loops of our own making, diagnosed by experiment. The waits are long, so that a busy machine changes no cause."""

import multiprocessing
import os
import time
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

import imagenet_opt
from imagenet_opt.diagnosis.loop import Examination
from imagenet_opt.diagnosis.measurements import Measurements
from imagenet_opt.diagnosis.source import Source
from imagenet_opt.errors import ConfigError, DataError, ImagenetOptError, TrainingError


class Waits(Dataset[Any]):
    """Sixty-four samples; each waits, as for a file."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.full((3, 8, 8), float(index)), index % 3


class Lazy(Waits):
    """Opens its file for the first sample; two processes must not share the file."""

    owner = 0

    def __getitem__(self, index: int) -> Any:
        self.owner = self.owner or os.getpid()
        if self.owner != os.getpid():
            raise OSError("opened by another process")
        return super().__getitem__(index)


class Photos(Waits):
    def __init__(self) -> None:
        file = BytesIO()
        Image.effect_noise((1024, 1024), 50).convert("RGB").save(file, "JPEG")
        self.file = file.getvalue()

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.array(Image.open(BytesIO(self.file)))[:8, :8].copy())


class Generated(Waits):
    def __getitem__(self, index: int) -> int:
        return sum(value % 7 for value in range(1_000_000))


_CODE = Generated.__getitem__.__code__
_CONSTANTS = (value.replace(co_linetable=b"") if hasattr(value, "co_code") else value for value in _CODE.co_consts)
Generated.__getitem__.__code__ = _CODE.replace(co_linetable=b"", co_consts=tuple(_CONSTANTS))


@dataclass
class Named:
    images: torch.Tensor
    labels: torch.Tensor


def named(samples: list[Any]) -> Named:
    return Named(torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples]))


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        while True:
            yield {"images": torch.zeros(3, 8, 8)}


@pytest.mark.slow
def test_slow_storage() -> None:
    loader = DataLoader(Waits(0.02), batch_size=8, num_workers=2, collate_fn=named)
    diagnosis = imagenet_opt.diagnose(loader, lambda batch: batch.images.mean(), seconds=6)
    assert diagnosis.cause in ("storage", "few_workers") and diagnosis.gain[1] > 2
    assert diagnosis.measured.mean_parts.waiting >= 8 * 0.019


@pytest.mark.slow
def test_epochs_of_two_batches_do_not_hide_a_slow_loader() -> None:
    loader = DataLoader(Waits(0.01), batch_size=32, num_workers=2, persistent_workers=True)
    measured = imagenet_opt.diagnose(loader, lambda batch: None, seconds=6).measured
    assert measured.steady > 0.15 and min(measured.drained) > 0.15  # two workers wait for 0.32 s in each batch


@pytest.mark.slow
def test_decoding_with_pillow() -> None:
    """The samples decode large images and use little of them."""
    measured = imagenet_opt.diagnose(DataLoader(Photos(), batch_size=4, num_workers=1), torch.sum, seconds=5).measured
    assert measured.decoding_share > 0.8 and measured.pixels == pytest.approx(3 * 1024 * 1024 / (3 * 8 * 8))


@pytest.mark.slow
def test_starts_of_epochs_in_steps_that_do_not_count() -> None:
    """A trainer that validates after each epoch interrupts just where the next epoch starts."""
    examination = Examination(DataLoader(Waits(0.002), batch_size=64), seconds=5)
    for number, _ in enumerate(examination.batches()):
        time.sleep(0.001)
        if number % 3:
            examination.interrupt()
    trials = [seconds for trial in examination.measured.trials for seconds in trial.before + trial.after]
    assert min(*examination.measured.loop, *examination.measured.kept, *trials) > 0.0009


@pytest.mark.slow
def test_a_slow_step(tmp_path: Any) -> None:
    loader = DataLoader(Endless(), batch_size=8)
    diagnosis = imagenet_opt.diagnose(loader, lambda batch: time.sleep(0.05 + 0 * len(batch["images"])), seconds=5)
    assert diagnosis.cause in ("training", "none") and diagnosis.gain == (1.0, 1.0)
    diagnosis.to_json(tmp_path / "diagnosis.json")
    assert f'"cause": "{diagnosis.cause}"' in (tmp_path / "diagnosis.json").read_text()


def test_a_loader_that_is_no_dataloader() -> None:
    diagnosis = imagenet_opt.diagnose(_Slow(), lambda batch: None, seconds=5)
    assert diagnosis.measured.num_workers is None
    assert diagnosis.cause in ("storage", "decode")  # a busy machine has more waits for a CPU


class _Slow:
    def __iter__(self) -> Any:
        for _ in range(4):
            time.sleep(0.05)
            yield torch.zeros(2)


def fails(batch: Any) -> None:
    raise ValueError("bad\x1b batch")


@pytest.mark.parametrize(
    ("loader", "step", "error", "says"),
    [
        (DataLoader(Waits(), batch_size=128, drop_last=True), print, DataError, "no batch"),
        ([], print, DataError, "no batch"),
        (iter([1, 2, 3]), str, DataError, "no further batch"),
        (DataLoader(Waits(), batch_size=8), fails, TrainingError, r"ValueError: bad\\x1b batch"),
        (3, print, DataError, "int"),
    ],
    ids=["smaller than a batch", "empty", "ends", "step fails", "no loader"],
)
def test_bad_input_ends_in_one_line(loader: Any, step: Any, error: type[ImagenetOptError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        imagenet_opt.diagnose(loader, step, seconds=5)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("seconds", [1, float("nan"), "60"])
def test_seconds_that_are_too_few_or_no_number(seconds: Any) -> None:
    with pytest.raises(ConfigError, match=f"seconds={seconds}"):
        imagenet_opt.diagnose([], print, seconds=seconds)
    with pytest.raises(ConfigError, match=f"seconds={seconds}"):
        imagenet_opt.tune(DataLoader(Waits()), seconds=seconds)


def test_measurements_without_rounds_are_not_judged() -> None:
    assert not Measurements().is_enough


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_loaders_that_are_tried_share_no_file() -> None:
    tried = imagenet_opt.tune(DataLoader(Lazy(), batch_size=8), seconds=5)
    assert 1 in tried.curve and not any("another process" in note for note in tried.notes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_tune_returns_arguments_of_a_dataloader(monkeypatch: pytest.MonkeyPatch) -> None:
    best = imagenet_opt.tune(DataLoader(Waits(0.01), batch_size=8), seconds=6)
    assert best["num_workers"] in best.curve and set(best.curve) >= {0, 1}
    assert len(list(DataLoader(Waits(), batch_size=8, **best))) == 8
    monkeypatch.setattr("imagenet_opt.machine.free_shared_memory", lambda: 30_000)  # a batch has 6,208 bytes
    assert max(imagenet_opt.tune(DataLoader(Waits(), batch_size=8), seconds=5).curve) <= 1


def test_a_spawned_worker_ends_as_it_does_without_us() -> None:
    source = Source(DataLoader(Waits(), batch_size=32, num_workers=1, multiprocessing_context="spawn"), {})
    source.next()
    workers = multiprocessing.active_children()
    source.next()
    source.close()
    for worker in workers:
        worker.join()
    assert workers and [worker.exitcode for worker in workers] == [0] * len(workers)


def test_a_worker_may_compute_instructions_that_belong_to_no_line() -> None:
    source = Source(DataLoader(Generated(), batch_size=4, num_workers=1), {})
    try:
        assert source.next().shape == (4,)
        assert any("test_loop.py:0 " in place for place in source.lines)
    finally:
        source.close()

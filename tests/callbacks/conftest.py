"""A Lightning project that has never heard of this one: a small module, a default DataLoader, a logger in memory."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from imagenet_opt.callbacks.acceleration import Acceleration


def switched(**on: Any) -> Acceleration:
    """Acceleration with nothing on but what is given."""
    switches = ("channels_last", "tf32", "cudnn_benchmark", "compile", "cuda_graph", "stored_code")
    return Acceleration(**dict.fromkeys(switches, False) | on)


class Network(nn.Sequential):
    """Torch 2.11 compiles no plain nn.Sequential: it passes over forwards of its own."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images)  # type: ignore[no-any-return]


class Plain(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net: nn.Module = Network(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
        self.seen: list[tuple[Tensor, Tensor]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.seen.append((batch[0].detach().clone(), batch[1].clone()))
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Memory(Logger):
    """Keeps the rows that Lightning logs: (step, metrics)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []

    name = "memory"
    version = 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step or 0, dict(metrics)))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def values(self, key: str) -> list[float]:
        return [row[key] for _, row in self.rows if key in row]


def alike() -> TensorDataset:
    """Forty equal images: a loader that begins again has the same batches."""
    return TensorDataset(torch.ones(40, 3, 8, 8), torch.zeros(40, dtype=torch.int64))


def opened(file: Path) -> dict[str, Any]:
    return torch.load(file, weights_only=True)  # type: ignore[no-any-return]


def images(num: int = 40, seed: int = 0) -> TensorDataset:
    random = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(num, 3, 8, 8, generator=random), torch.arange(num) % 3)


class Stream(IterableDataset[Any]):
    """Ten batches of four; the loader does not know their number."""

    def __iter__(self) -> Iterator[Any]:
        return iter(images(40))


@dataclass
class Named:
    """A batch whose parts have names."""

    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, samples: list[Any]) -> "Named":
        return cls(*default_collate(samples))


class Project:
    """Fits modules with callbacks, and keeps what was logged."""

    def __init__(self) -> None:
        self.logger = Memory()

    def fit(
        self,
        *callbacks: Callback,
        module: Plain | None = None,
        data: Any = None,
        shuffle: bool | None = None,
        collate_fn: Any = None,
        ckpt_path: Any = None,
        batch_size: int | None = 4,
        **options: Any,
    ) -> Plain:
        module = module or Plain()
        settings = {"max_epochs": 2, "log_every_n_steps": 5, "num_sanity_val_steps": 0, "enable_progress_bar": False}
        self.trainer = Trainer(
            accelerator="cpu",
            logger=self.logger,
            enable_model_summary=False,
            enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
            callbacks=list(callbacks),
            **settings | options,
        )
        loader = DataLoader(data or images(), batch_size=batch_size, shuffle=shuffle, collate_fn=collate_fn)
        validation = DataLoader(images(8), batch_size=4, collate_fn=collate_fn)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not have many workers")
            warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before the epoch ended")
            self.trainer.fit(module, loader, validation, ckpt_path=ckpt_path, weights_only=True)
        return module


def weights(module: Plain) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.net.state_dict().items()}


def fitted(project: Project, *callbacks: Callback, net: nn.Module, **options: Any) -> Plain:
    """A fit of `net` with the same random numbers each time."""
    module = Plain()
    module.net = net
    torch.manual_seed(7)
    return project.fit(*callbacks, module=module, **options)


def assert_same_weights(first: Plain, second: Plain) -> None:
    """Equal to the last bit."""
    torch.testing.assert_close(weights(first), weights(second), rtol=0, atol=0)


class AtCall(Callback):
    """Calls `act` at one call of one hook, counted from 1."""

    def __init__(self, hook: str, call: int, act: Callable[[], None]) -> None:
        self.left, self.act = call, act
        setattr(self, hook, self.count)

    def count(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()


class WatchKeys(Callback):
    """Calls `watch` when the loader of an ImageData asks for the next batch."""

    watch: Callable[[], None]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        keys: Any = trainer.train_dataloader.sampler  # type: ignore[union-attr]
        size_of = keys.size_of

        def watched(epoch: int) -> int:
            self.watch()
            return size_of(epoch)

        keys.size_of = watched


class Clock:
    """Takes the place of the module `time`: seconds pass only where a test spends them."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    process_time = monotonic = perf_counter

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the callbacks that time a fit, and of the actions of its Trainer."""
    made = Clock()
    moments = "imagenet_opt.measure.telemetry.cuda_clock"
    for module in (
        "imagenet_opt.callbacks.throughput",
        "imagenet_opt.callbacks.bottleneck",
        "imagenet_opt.probe.fit_timer",
        "imagenet_opt.run.hook_timer",
        moments,
    ):
        monkeypatch.setattr(f"{module}.time", made)
    return made


class SlowImages(Dataset):
    """Each image takes 10 ms of the clock."""

    def __init__(self, clock: Clock, num: int = 40) -> None:
        self.clock, self.num = clock, num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.clock.spend(0.01)
        return torch.zeros(3, 8, 8), i % 3


class SlowStep(Plain):
    """Each step takes 10 ms of the clock, validation none."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.clock.spend(0.01)
        return super().training_step(batch, batch_idx)


@pytest.fixture
def project() -> Project:
    return Project()

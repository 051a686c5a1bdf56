"""A Lightning project that has never heard of this one: a small module, a default DataLoader, a logger in memory."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from callbacks.acceleration import Acceleration


def switched(**on: Any) -> Acceleration:
    """Acceleration with nothing on but what is given."""
    return Acceleration(**{"channels_last": False, "tf32": False, "cudnn_benchmark": False} | on)


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


def images(num: int = 40, seed: int = 0) -> TensorDataset:
    random = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(num, 3, 8, 8, generator=random), torch.arange(num) % 3)


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
        self.trainer.fit(module, loader, validation, ckpt_path=ckpt_path, weights_only=True)
        return module


class Clock:
    """Takes the place of the module `time`: seconds pass only where a test spends them."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the callbacks that time a fit, and of the actions of its Trainer."""
    made = Clock()
    for module in ("callbacks.throughput", "callbacks.bottleneck", "imagenet_opt.run.hook_timer"):
        monkeypatch.setattr(f"{module}.time", made)
    return made


class SlowImages(Dataset):
    """Forty images; each takes 10 ms of the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 40

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


@pytest.fixture
def compile_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()

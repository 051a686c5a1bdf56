"""CUDA graphs on a real GPU: the same training with one launch instead of hundreds."""

import gc
import weakref
from functools import wraps
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from imagenet_opt.callbacks.acceleration import Acceleration
from imagenet_opt.model.cuda_graph import GraphedForward, capture_on_gpu
from imagenet_opt.model.network import build_network
from tests.callbacks.conftest import switched
from tests.conftest import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")
NUM_STEPS, NUM_IMAGES = 10, 16


class Images(torch.utils.data.Dataset):
    """Batches that are small in the first steps and large later."""

    def __len__(self) -> int:
        return NUM_STEPS

    def __getitem__(self, step: int) -> list[Tensor]:
        random = torch.Generator().manual_seed(step)
        side = 64 if step < NUM_STEPS // 2 else 96
        return [torch.randn(NUM_IMAGES, 3, side, side, generator=random), torch.arange(NUM_IMAGES) % 5]


class Training(LightningModule):
    """parts: micro-batches of a step, the last one smaller where they do not divide the batch."""

    def __init__(self, *, micro_batch_size: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = build_network("resnet10t", num_classes=5)
        self.automatic_optimization = False
        self.micro_batch_size = micro_batch_size
        self.losses: list[Tensor] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        size = self.micro_batch_size or NUM_IMAGES
        losses = []
        for images, labels in zip(batch[0].split(size), batch[1].split(size), strict=True):
            loss = nn.functional.cross_entropy(self.net(images), labels, reduction="sum") / NUM_IMAGES
            self.manual_backward(loss)
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.losses.append(torch.stack(losses).sum())

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        assert not self.net.training
        self.net(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


class Logits(Callback):
    """What the network says in evaluation after the last step, while the graphs are there still."""

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        pl_module.net.eval()
        with torch.no_grad():
            images = torch.ones(2, 3, 64, 64, device=pl_module.device, dtype=pl_module.dtype)
            self.logits = pl_module.net(images)
        pl_module.net.train()


def fit(
    *callbacks: Callback, precision: str = "bf16-mixed", micro_batch_size: int | None = None
) -> tuple[Training, Tensor]:
    module, seen = Training(micro_batch_size=micro_batch_size), Logits()
    trainer = quiet_trainer(
        accelerator="gpu", devices=1, precision=precision, max_epochs=1, callbacks=[*callbacks, seen]
    )
    loader = DataLoader(Images(), batch_size=None, pin_memory=True)
    trainer.fit(module, loader, DataLoader(Images(), batch_size=None))
    return module, seen.logits


def graph(**options: Any) -> Acceleration:
    return switched(cuda_graph=True, on_failure="stop", **options)


def assert_alike(one: tuple[Training, Tensor], other: tuple[Training, Tensor], tolerance: float) -> None:
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(torch.stack(one[0].losses), torch.stack(other[0].losses), **close)
    torch.testing.assert_close(one[1], other[1], **close)
    for name, buffer in other[0].net.named_buffers():
        torch.testing.assert_close(dict(one[0].net.named_buffers())[name], buffer, **close, msg=name)


@pytest.mark.parametrize("micro_batch_size", [None, 8, 6])
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16-mixed", 2e-2), ("64-true", 1e-8), ("16-mixed", 1e-2)])
def test_graphs_train_as_eager_does(micro_batch_size: int | None, precision: str, tolerance: float) -> None:
    eager = fit(switched(), precision=precision, micro_batch_size=micro_batch_size)
    captured = graph()
    graphed = fit(captured, precision=precision, micro_batch_size=micro_batch_size)
    assert_alike(graphed, eager, tolerance)
    assert int(graphed[0].net.bn1.num_batches_tracked) == int(eager[0].net.bn1.num_batches_tracked)
    assert list(graphed[0].state_dict()) == list(eager[0].state_dict())
    assert captured.summary()["startup/cuda_graph_seconds"] > 0


@pytest.mark.usefixtures("compile_cache")
@pytest.mark.parametrize(
    ("mode", "precision", "tolerance"),
    [
        ("default", "bf16-mixed", 5e-2),
        pytest.param("default", "32-true", 5e-3, marks=pytest.mark.slow),
        pytest.param("max-autotune-no-cudagraphs", "32-true", 5e-3, marks=pytest.mark.slow),
    ],
)
def test_what_is_compiled_is_captured_compiled(mode: str, precision: str, tolerance: float) -> None:
    both = graph(compile=True, compile_mode=mode, channels_last=True)
    eager = fit(switched(channels_last=True), precision=precision)
    assert_alike(fit(both, precision=precision), eager, tolerance)
    assert both.summary().keys() == {"startup/compile_seconds", "startup/cuda_graph_seconds"}


@pytest.mark.slow
@pytest.mark.usefixtures("compile_cache")
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_micro_batches_add_up_where_the_compiler_makes_the_graphs(mode: str) -> None:
    compiling = switched(compile=True, compile_mode=mode, on_failure="stop")
    eager = fit(switched(), precision="32-true", micro_batch_size=8)
    assert_alike(fit(compiling, precision="32-true", micro_batch_size=8), eager, 5e-3)


def test_kernels_of_a_step_come_from_two_launches() -> None:
    """Of the forward and of the backward; loss and optimizer have theirs."""
    launches = []

    class Count(Callback):
        def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                self.profile = torch.profiler.profile().__enter__()

        def on_train_batch_end(
            self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if batch_idx == 2:
                torch.cuda.synchronize()
                self.profile.__exit__(None, None, None)
                launches.append(sum(event.count for event in self.profile.key_averages() if "GraphLaunch" in event.key))

    fit(graph(), Count())
    assert launches == [2]


def test_a_size_for_which_memory_runs_out_goes_without_and_the_next_is_captured(monkeypatch, caplog) -> None:
    real, asked = torch.cuda.make_graphed_callables, []

    @wraps(real)
    def scarce(module: nn.Module, sample: tuple[Tensor], **options: Any) -> nn.Module:
        asked.append(sample[0].shape[-1])
        if len(asked) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(module, sample, **options)

    eager = fit(switched(), precision="64-true")
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", scarce)
    with caplog.at_level("INFO"):
        assert_alike(fit(switched(cuda_graph=True), precision="64-true"), eager, 1e-8)
    assert asked == [64, 96]
    assert "no CUDA graph of (16, 3, 64, 64)" in caplog.text and "CUDA graph of (16, 3, 96, 96) captured" in caplog.text


def test_graphs_of_a_micro_batch_that_was_halved_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    real, captured = torch.cuda.make_graphed_callables, []

    @wraps(real)
    def noted(module: nn.Module, sample: tuple[Tensor], **options: Any) -> nn.Module:
        captured.append((tuple(sample[0].shape), weakref.ref(module)))
        return real(module, sample, **options)

    class Halve(Callback):
        """As the step does where memory runs out."""

        def on_train_batch_end(
            self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if batch_idx == 2:
                pl_module.micro_batch_size = 8
                trainer.callbacks[0].on_out_of_memory(trainer, pl_module, batch)  # type: ignore[attr-defined]
            if batch_idx == NUM_STEPS - 1:
                self.left = [shape for shape, module in captured if module() is not None]

    eager, halve = fit(switched(), Halve(), precision="64-true"), Halve()
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", noted)
    assert_alike(fit(graph(), halve, precision="64-true"), eager, 1e-8)
    assert [shape for shape, _ in captured] == [(16, 3, 64, 64), (8, 3, 64, 64), (8, 3, 96, 96)]
    assert halve.left == [(8, 3, 64, 64), (8, 3, 96, 96)]


def test_graphs_of_two_sizes_share_their_memory_and_give_it_back() -> None:
    net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1)).cuda()
    net(torch.randn(64, 3, 128, 128, device="cuda"))
    graphed = GraphedForward(net, capture_on_gpu())

    def reserved() -> int:
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    before, taken = reserved(), []
    for side in (128, 120):
        graphed.capture(torch.randn(64, 3, side, side, device="cuda"))
        taken.append(reserved() - before)
    assert taken[0] > 2**29, "two activations of 260 MB and their gradients"
    assert taken[1] - taken[0] < taken[0] / 4
    graphed.release()
    assert torch.cuda.memory_reserved() <= before


def test_dropout_draws_anew_in_each_replay() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout(0.5)).cuda()
    images = torch.ones(2, 3, 8, 8, device="cuda")
    before = torch.cuda.get_rng_state()
    GraphedForward(net, capture_on_gpu()).capture(images)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    first = net(images)
    first.sum().backward()
    assert not torch.equal(net(images) == 0, first == 0)

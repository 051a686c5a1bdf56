"""Compiled networks train as they would have without compiling, and a failed compilation does not stop them."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from imagenet_opt.model.micro_batch import part_sizes
from tests.callbacks.conftest import Plain, assert_same_weights, fitted, opened, switched, weights
from tests.model import conftest as classifier
from tests.model.conftest import batches, network

pytestmark = pytest.mark.usefixtures("compile_cache")


class Branching(nn.Module):
    """Asks for a value in the middle, which fullgraph does not allow."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten())
        self.head = nn.Linear(144, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.layers(images)
        if features.sum().item() > 1e9:
            features = features * 2
        return self.head(features)


def test_after_a_failed_compile_training_equals_an_eager_run(project, caplog) -> None:
    with caplog.at_level("INFO"):
        tried = fitted(project, switched(compile=True, fullgraph=True), net=Branching())
    assert "compilation failed, training continues without it" in caplog.text
    assert_same_weights(fitted(project, net=Branching()), tried)


@pytest.fixture
def num_graphs(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Graphs that were made, by the number of images; torch's own compiler behind dynamo is left out."""
    counts: Counter[int] = Counter()

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        counts[next(len(value) for value in inputs if value.ndim == 4 and not value.requires_grad)] += 1
        return graph.forward

    compile_network = nn.Module.compile

    def without_inductor(net: nn.Module, *, mode: str, **options: Any) -> None:
        compile_network(net, backend=count, **options)

    monkeypatch.setattr(nn.Module, "compile", without_inductor)
    return counts


class Parts(Plain):
    """Trains in micro-batches, as Classifier does."""

    micro_batch_size: int | None = None

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        sizes = part_sizes(len(batch[0]), self.micro_batch_size)
        parts = zip(batch[0].split(sizes), batch[1].split(sizes), strict=True)
        return sum(nn.functional.cross_entropy(self.net(images), labels, reduction="sum") for images, labels in parts)


class Watch(Callback):
    """Graphs that were made inside steps, where nothing protects the run."""

    def __init__(self, num_graphs: Counter[int]) -> None:
        self.inside = 0
        self.on_train_batch_start = lambda *_: setattr(self, "inside", self.inside - num_graphs.total())
        self.on_train_batch_end = lambda *_: setattr(self, "inside", self.inside + num_graphs.total())


def test_every_size_of_a_micro_batch_is_compiled_before_the_step(project, num_graphs: Counter[int]) -> None:
    module, watch = Parts(), Watch(num_graphs)
    module.micro_batch_size = 3
    project.fit(switched(compile=True), watch, module=module, batch_size=5, max_steps=2)
    assert num_graphs == {3: 1, 2: 1}
    assert watch.inside == 0


def test_gradients_that_wait_for_the_next_batch_are_kept_while_it_compiles(project, num_graphs: Counter[int]) -> None:
    def fitted(*callbacks: Callback) -> Plain:
        batches = [(torch.ones(num, 3, 8, 8) * num, torch.arange(num) % 3) for num in (2, 3)]
        return project.fit(*callbacks, data=batches, batch_size=None, log_every_n_steps=1, accumulate_grad_batches=2)

    compiled, plain = fitted(switched(compile=True)), fitted()
    assert num_graphs.keys() == {2, 3}
    torch.testing.assert_close(weights(compiled), weights(plain))


@pytest.mark.usefixtures("num_graphs")
def test_compiled_and_plain_runs_train_alike_and_open_each_others_files(tmp_path: Path) -> None:
    compiling = switched(compile=True, on_failure="stop")
    trainer, compiled = classifier.fit(network(), batches(2), None, compiling)
    assert compiling.compile_seconds is not None
    trainer_too, eager = classifier.fit(network(), batches(3))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    trainer_too.save_checkpoint(tmp_path / "b.ckpt")
    saved, saved_too = opened(tmp_path / "a.ckpt"), opened(tmp_path / "b.ckpt")
    assert saved["network"].keys() == network().state_dict().keys()
    _, same = classifier.fit(network(), batches(2))
    torch.testing.assert_close(saved["network"], dict(same.net.state_dict()), rtol=1e-3, atol=1e-4)
    images = batches(1)[0].images
    expected, expected_too = compiled.net(images), eager.net(images)
    eager.load_state_dict(saved["state_dict"], strict=True)
    compiled.load_state_dict(saved_too["state_dict"], strict=True)
    torch.testing.assert_close(eager.net(images), expected)
    torch.testing.assert_close(compiled.net(images), expected_too)

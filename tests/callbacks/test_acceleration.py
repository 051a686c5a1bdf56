"""Each switch does what it says, and leaves no trace after the fit."""

from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from imagenet_opt.errors import ConfigError
from tests.callbacks.conftest import Named, Plain, assert_same_weights, fitted, switched, weights

pytestmark = pytest.mark.usefixtures("compile_cache")
CHANNELS_LAST = torch.channels_last


def switches() -> tuple[str, bool, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark


def test_switches_are_on_during_the_fit_and_as_before_after_it(project) -> None:
    seen = []

    class Look(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
            last = [tensor.is_contiguous(memory_format=CHANNELS_LAST) for tensor in (batch[0], module.net[0].weight)]
            seen.append((*switches(), *last))

    before = switches()
    project.fit(switched(channels_last=True, tf32=True, cudnn_benchmark=True), Look())
    assert set(seen) == {("high", True, True, True, True)}
    seen.clear()
    project.fit(switched(), Look())
    assert set(seen) == {("highest", False, False, False, False)}
    assert switches() == before


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        (None, "channels_last on"),
        ((7, 5), "channels_last, cudnn_benchmark, cuda_graph on"),
        ((8, 0), "channels_last, tf32, cudnn_benchmark, cuda_graph on"),
    ],
)
def test_only_switches_that_act_on_the_device_are_reported(
    project, caplog, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None, names: str
) -> None:
    accelerating = switched(channels_last=True, tf32=True, cudnn_benchmark=True, cuda_graph=True)
    strategy = SimpleNamespace(root_device=torch.device("cuda" if capability else "cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with caplog.at_level("INFO"):
        accelerating.setup(SimpleNamespace(strategy=strategy, world_size=1), Plain(), "fit")
    accelerating.teardown(None, None, "fit")
    assert caplog.messages[-1] == f"acceleration: {names}"


def test_switches_are_as_before_after_an_error_too(project) -> None:
    failing = Callback()
    failing.on_train_batch_end = lambda *_: 1 / 0
    before = switches()
    with pytest.raises(ZeroDivisionError):
        project.fit(switched(tf32=True, cudnn_benchmark=True), failing)
    assert switches() == before


def test_deterministic_runs_search_no_algorithms(project) -> None:
    seen, look = [], Callback()
    look.on_train_start = lambda *_: seen.append(torch.backends.cudnn.benchmark)
    project.fit(switched(cudnn_benchmark=True), look, deterministic=True, max_steps=1)
    torch.use_deterministic_algorithms(False)
    assert seen == [False]


def test_a_batch_with_names_is_laid_out_as_well(project) -> None:
    class Look(Plain):
        def training_step(self, batch: Named, batch_idx: int) -> torch.Tensor:
            assert batch.images.is_contiguous(memory_format=CHANNELS_LAST)
            return nn.functional.cross_entropy(self.net(batch.images), batch.labels)

        def validation_step(self, batch: Named, batch_idx: int) -> None:
            assert batch.images.is_contiguous(memory_format=CHANNELS_LAST)

    project.fit(switched(channels_last=True), module=Look(), collate_fn=Named.of)
    assert project.trainer.global_step == 20


def test_gradient_checkpointing_changes_no_weight(project) -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return timm.create_model("test_vit2", num_classes=3, img_size=8, patch_size=4)

    plain = fitted(project, net=network())
    saving = fitted(project, switched(gradient_checkpointing=True), net=network())
    assert saving.net.grad_checkpointing
    torch.testing.assert_close(weights(saving), weights(plain), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"gradient_checkpointing": True}, r"gradient_checkpointing=false"),
        ({"network": "model"}, r"callbacks\.acceleration\.network='model'"),
    ],
)
def test_networks_without_what_an_option_needs_are_refused(project, option: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        project.fit(switched(**option))


def test_options_that_contradict_a_cuda_graph_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"gradient_checkpointing=true"):
        switched(cuda_graph=True, gradient_checkpointing=True)
    for mode in ("reduce-overhead", "max-autotune"):
        with pytest.raises(ConfigError, match=rf"compile_mode={mode}.*max-autotune-no-cudagraphs.*cuda_graph=false"):
            switched(cuda_graph=True, compile=True, compile_mode=mode)
        switched(cuda_graph=True, compile_mode=mode)
    switched(cuda_graph=True, compile=True, compile_mode="max-autotune-no-cudagraphs")


def test_gradients_that_are_kept_do_not_go_with_compiled_graphs() -> None:
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cuda")), world_size=1)
    module = Plain()
    module.set_to_none = False
    compiling = switched(compile=True, compile_mode="max-autotune")
    with pytest.raises(ConfigError, match=r"max-autotune.*model\.set_to_none=true.*max-autotune-no-cudagraphs"):
        compiling.setup(trainer, module, "fit")


def test_a_cuda_graph_is_for_one_process() -> None:
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False)
    with pytest.raises(ConfigError, match=r"cuda_graph=true needs a single process, not 2.*trainer\.devices"):
        switched(cuda_graph=True).setup(trainer, Plain(), "fit")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a CPU leaves out")
def test_a_cpu_logs_one_line_that_it_has_no_cuda_graph(project, caplog) -> None:
    with caplog.at_level("INFO"):
        graphed = project.fit(switched(cuda_graph=True))
    assert caplog.text.count("CUDA graph") == 1
    assert_same_weights(project.fit(), graphed)


def test_a_batch_of_another_kind_is_touched_only_when_it_must_be(project) -> None:
    class Look(Plain):
        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch["x"]), batch["y"])

    def collate(samples: list) -> dict[str, torch.Tensor]:
        return dict(zip("xy", torch.utils.data.default_collate(samples), strict=True))

    project.fit(switched(tf32=True, cudnn_benchmark=True), module=Look(), collate_fn=collate)
    with pytest.raises(ConfigError, match=r"batch that is a dict.*callbacks\.acceleration\.channels_last"):
        project.fit(switched(channels_last=True), module=Look(), collate_fn=collate)

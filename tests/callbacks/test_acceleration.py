"""Each switch does what it says, and leaves no trace after the fit."""

import gc
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from imagenet_opt.callbacks.acceleration import Acceleration
from imagenet_opt.errors import ConfigError
from tests.callbacks.conftest import Plain, assert_same_weights, fitted, switched, weights

pytestmark = pytest.mark.usefixtures("compile_cache")
CHANNELS_LAST = torch.channels_last
CUDA = torch.device("cuda")


def gpu_trainer(device: Any = CUDA, **more: Any) -> Any:
    return SimpleNamespace(strategy=SimpleNamespace(root_device=device), world_size=1, global_rank=0, **more)


def switches() -> tuple[str, bool, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark


def test_switches_are_on_during_the_fit_and_as_before_after_it_and_after_an_error(project) -> None:
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
    failing = Callback()
    failing.on_train_batch_end = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        project.fit(switched(tf32=True, cudnn_benchmark=True), failing)
    assert switches() == before


def test_gradient_checkpointing_changes_no_weight(project) -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return timm.create_model("test_vit2", num_classes=3, img_size=8, patch_size=4)

    plain = fitted(project, net=network())
    saving = fitted(project, switched(gradient_checkpointing=True), net=network())
    assert saving.net.grad_checkpointing
    torch.testing.assert_close(weights(saving), weights(plain), rtol=1e-4, atol=1e-5)


def test_options_that_contradict_a_cuda_graph_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"gradient_checkpointing=true"):
        switched(cuda_graph=True, gradient_checkpointing=True)
    for mode in ("reduce-overhead", "max-autotune"):
        with pytest.raises(ConfigError, match=f"compile_mode={mode}.*cuda_graph=false"):
            switched(cuda_graph=True, compile=True, compile_mode=mode)
        switched(cuda_graph=True, compile_mode=mode)
    switched(cuda_graph=True, compile=True, compile_mode="max-autotune-no-cudagraphs")


def test_gradients_that_are_kept_do_not_go_with_compiled_graphs() -> None:
    trainer = gpu_trainer()
    module = Plain()
    module.set_to_none = False
    compiling = switched(compile=True, compile_mode="max-autotune")
    with pytest.raises(ConfigError, match=r"max-autotune.*model\.set_to_none=true"):
        compiling.setup(trainer, module, "fit")


def test_a_cuda_graph_is_for_one_process() -> None:
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False)
    with pytest.raises(ConfigError, match=r"cuda_graph=true.*trainer\.devices"):
        switched(cuda_graph=True).setup(trainer, Plain(), "fit")


def on_gpu(acceleration: Acceleration, *, num_steps: float, side: int = 224, batch: Any = None) -> Acceleration:
    """After the first batch of 256 images of a run on a GPU; nothing is compiled or captured."""
    trainer = gpu_trainer(SimpleNamespace(type="cuda"), accumulate_grad_batches=1, estimated_stepping_batches=num_steps)
    acceleration.setup(trainer, Plain(), "fit")
    acceleration.compiler.prepare = lambda parts: None
    images = [torch.empty(256, 3, side, side, device="meta"), torch.empty(256, device="meta")]
    acceleration.on_train_batch_start(trainer, Plain(), images if batch is None else batch, 0)
    acceleration.teardown(trainer, Plain(), "fit")
    return acceleration


@pytest.mark.parametrize(
    ("num_steps", "side", "compiles"),
    [(3800, 224, False), (4000, 224, True), (4000, 192, False), (190_000, 32, False), (inf, 32, True)],
)
def test_auto_compiles_a_long_run_on_a_gpu(caplog, num_steps: float, side: int, compiles: bool) -> None:
    with caplog.at_level("INFO"):
        chosen = on_gpu(switched(compile="auto"), num_steps=num_steps, side=side)
    assert chosen.compiler.compile is compiles
    assert f"compile (default) {'on' if compiles else 'off'}: the run trains" in caplog.text


@pytest.mark.parametrize("began", [True, False])
def test_a_resumed_run_is_compiled_as_it_began_unless_the_user_says_otherwise(began: bool) -> None:
    first = on_gpu(switched(compile="auto"), num_steps=5000 if began else 10)
    longer = {False: 100_000, True: 20}[began]

    def resumed(compile: Any) -> bool:
        acceleration = switched(compile=compile)
        setup = acceleration.setup

        def setup_and_load(*args: Any) -> None:  # in Lightning's order
            setup(*args)
            acceleration.load_state_dict(first.state_dict())

        acceleration.setup = setup_and_load
        return on_gpu(acceleration, num_steps=longer).compiler.compile

    assert [resumed(value) for value in ("auto", True, False)] == [began, True, False]


@pytest.mark.parametrize(
    ("options", "captures"),
    [
        ({"compile": "auto"}, True),
        ({"compile": True, "compile_mode": "reduce-overhead"}, False),
        ({"compile": False, "compile_mode": "reduce-overhead"}, True),
        ({"gradient_checkpointing": True}, False),
    ],
)
def test_auto_captures_where_nothing_forbids_it(options: dict[str, Any], captures: bool) -> None:
    module = Plain()
    module.net.set_grad_checkpointing = lambda enable: None
    trainer = gpu_trainer()
    acceleration = switched(cuda_graph="auto", **options)
    acceleration.setup(trainer, module, "fit")
    assert acceleration.compiler.cuda_graph is captures
    trainer.world_size = 2
    acceleration.setup(trainer, module, "fit")
    assert not acceleration.compiler.cuda_graph


def test_auto_passes_over_batches_without_images() -> None:
    chosen = on_gpu(switched(compile="auto", cuda_graph="auto"), num_steps=inf, batch={"x": torch.zeros(4)})
    assert not chosen.compiler.compile and not chosen.compiler.cuda_graph


def test_a_failed_capture_that_nobody_asked_for_does_not_stop_the_run(project, monkeypatch, caplog) -> None:
    def capture(net: nn.Module, sample: tuple[torch.Tensor]) -> nn.Module:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr("imagenet_opt.model.shape_compiler.capture_on_gpu", lambda: capture)
    monkeypatch.setattr("imagenet_opt.callbacks.acceleration.forbids_graph", lambda **_: False)
    with caplog.at_level("INFO"):
        fallen_back = project.fit(switched(cuda_graph="auto", on_failure="stop"))
    assert caplog.text.count("no CUDA graph of (4, 3, 8, 8), training without it: RuntimeError: operation not") == 1
    assert_same_weights(project.fit(), fallen_back)


def test_the_garbage_collector_leaves_out_what_exists_before_the_first_step(project) -> None:
    frozen = []

    class Look(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            frozen.append(gc.get_freeze_count())

    project.fit(switched(), Look(), max_steps=3)
    assert min(frozen) > 10_000
    assert gc.get_freeze_count() == 0

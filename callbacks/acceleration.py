"""What makes the same network run faster: memory format, TF32, cuDNN's search, compile, checkpointing."""

import time
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from imagenet_opt.errors import ConfigError

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Acceleration(Callback):
    """Switches, each on its own, for the network at `network` (an attribute of the module).

    channels_last: the network's and the images' memory order. tf32: matrix products and convolutions in TF32 where
    float32 is used. cudnn_benchmark: let cuDNN time its algorithms for each shape. compile: torch.compile in place,
    so that the keys of checkpoints stay clean, at the first training batch of each image size and tried there by a
    forward and backward with buffers and random state restored; on_failure: "eager" goes on uncompiled and says
    why, "stop" raises.
    gradient_checkpointing: timm's, less memory for more time.
    Precision, fused and deterministic are the Trainer's and the optimizer's.

    Logs nothing by step; `summary()` has `startup/compile_seconds`.
    """

    def __init__(
        self,
        *,
        channels_last: bool = False,
        tf32: bool = False,
        cudnn_benchmark: bool = False,
        compile: bool = False,
        compile_mode: str = "default",
        fullgraph: bool = False,
        gradient_checkpointing: bool = False,
        on_failure: Literal["eager", "stop"] = "eager",
        network: str = "net",
    ) -> None:
        if compile_mode not in _MODES:
            raise ConfigError(
                f"callbacks.acceleration.compile_mode={compile_mode!r} must be one of {', '.join(_MODES)}"
            )
        if on_failure not in ("eager", "stop"):
            raise ConfigError(f"callbacks.acceleration.on_failure={on_failure!r} must be eager or stop")
        self.channels_last = channels_last
        self.tf32 = tf32
        self.cudnn_benchmark = cudnn_benchmark
        self.compile = compile
        self.compile_mode = compile_mode
        self.fullgraph = fullgraph
        self.gradient_checkpointing = gradient_checkpointing
        self.on_failure = on_failure
        self.network = network
        self.compile_seconds: float | None = None
        self._tried: set[torch.Size] = set()
        self._before: tuple[str, bool, bool] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        net = self._net(pl_module)
        self._before = _switches()
        search = self.cudnn_benchmark and not torch.are_deterministic_algorithms_enabled()
        _set_switches("high" if self.tf32 else "highest", self.tf32, search)
        if self.channels_last:
            net.to(memory_format=torch.channels_last)
        if self.gradient_checkpointing:
            _checkpoint_gradients(net)
        if self.compile and self.compile_mode != "default" and trainer.strategy.root_device.type == "cpu":
            rank_zero_info(f"acceleration: compile mode {self.compile_mode} is for GPUs; default on this CPU")
            self.compile_mode = "default"
        self._tried = set()
        on = [
            name
            for name in ("channels_last", "tf32", "cudnn_benchmark", "gradient_checkpointing")
            if getattr(self, name)
        ]
        on += [f"compile ({self.compile_mode})"] if self.compile else []
        rank_zero_info(f"acceleration: {', '.join(on) or 'nothing'} on")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._lay_out(batch)
        if self.compile and (shape := _images(batch).shape) not in self._tried:
            self._tried.add(shape)
            self._compile(trainer, pl_module, _images(batch))

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._lay_out(batch)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._before is not None:
            _set_switches(*self._before)
            self._before = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")  # which Lightning leaves out after an error

    def summary(self) -> dict[str, float]:
        return {} if self.compile_seconds is None else {"startup/compile_seconds": self.compile_seconds}

    def _net(self, pl_module: LightningModule) -> nn.Module:
        net = getattr(pl_module, self.network, None)
        if not isinstance(net, nn.Module):
            raise ConfigError(
                f"callbacks.acceleration.network={self.network!r} is no network of {type(pl_module).__name__}"
            )
        return net

    def _lay_out(self, batch: Any) -> None:
        """Images in the network's memory order, in place."""
        if not self.channels_last and not hasattr(batch, "images"):
            return
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        images = _images(batch).contiguous(memory_format=layout)
        if isinstance(batch, list):
            batch[0] = images
        else:
            batch.images = images

    def _compile(self, trainer: Trainer, pl_module: LightningModule, images: Tensor) -> None:
        net = self._net(pl_module)
        if len(self._tried) == 1:
            net.compile(mode=self.compile_mode, fullgraph=self.fullgraph, dynamic=False)
        images = images[: getattr(pl_module, "micro_batch_size", None)]
        began = time.perf_counter()
        try:
            _forward_backward(net, images, trainer)
        except Exception as error:
            if self.on_failure == "stop":
                raise
            net._compiled_call_impl = None
            self.compile = False
            reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
            rank_zero_info(f"acceleration: not compiled, going on eagerly: {type(error).__name__}: {reason}")
            return
        seconds = time.perf_counter() - began
        self.compile_seconds = (self.compile_seconds or 0.0) + seconds
        rank_zero_info(f"acceleration: compiled for images of {tuple(images.shape[-2:])} in {seconds:.1f} s")


def _images(batch: Any) -> Tensor:
    if not isinstance(batch, list) and not hasattr(batch, "images"):
        raise ConfigError(
            f"callbacks.acceleration: no images in a batch that is a {type(batch).__name__}; expected a list "
            "[images, ...] or an object with `images`; set callbacks.acceleration.channels_last and compile to false"
        )
    images: Tensor = batch[0] if isinstance(batch, list) else batch.images
    return images


def _forward_backward(net: nn.Module, images: Tensor, trainer: Trainer) -> None:
    """One forward and backward that leaves no trace: buffers, gradients and random state are as before."""
    buffers = [buffer.clone() for buffer in net.buffers()]
    devices = [images.device] if images.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), trainer.precision_plugin.forward_context():
            net(images).float().sum().backward()
        if devices:
            torch.cuda.synchronize()
    finally:
        for buffer, before in zip(net.buffers(), buffers, strict=True):
            buffer.copy_(before)
        for parameter in net.parameters():
            parameter.grad = None


def _checkpoint_gradients(net: nn.Module) -> None:
    enable: Any = getattr(net, "set_grad_checkpointing", None)
    if enable is None:
        remedy = "set callbacks.acceleration.gradient_checkpointing=false"
        raise ConfigError(f"{type(net).__name__} has no gradient checkpointing; {remedy}")
    enable(True)


def _switches() -> tuple[str, bool, bool]:
    cudnn = torch.backends.cudnn
    return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark


def _set_switches(matmul_precision: str, conv_tf32: bool, benchmark: bool) -> None:
    torch.set_float32_matmul_precision(matmul_precision)
    torch.backends.cudnn.allow_tf32 = conv_tf32
    torch.backends.cudnn.benchmark = benchmark

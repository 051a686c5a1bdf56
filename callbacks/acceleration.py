"""What makes the same network run faster: memory format, TF32, cuDNN's search, compile, CUDA graph, checkpointing."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from imagenet_opt.errors import ConfigError
from imagenet_opt.model.compiled_forward import WITHOUT_GRAPHS, CompiledForward
from imagenet_opt.model.cuda_graph import (
    GraphedForward,
    capture_on_gpu,
    without_autocast_cache,
)
from imagenet_opt.model.micro_batch import part_sizes
from imagenet_opt.out_of_memory import ran_out

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Acceleration(Callback):
    """Switches, each on its own, for the network at `network` (an attribute of the module).

    channels_last: the network's and the images' memory order. tf32: matrix products and convolutions in TF32 where
    float32 is used. cudnn_benchmark: let cuDNN time its algorithms for each shape. compile: torch.compile in place,
    so that the keys of checkpoints stay clean, at the first training batch of each shape (of a micro-batch, where there
    are any) and tried there by a forward and backward with buffers, gradients and random state restored; torch's limit
    of recompilations grows with the number of shapes; validation is not compiled; on_failure: "eager" goes on
    uncompiled and says why, "stop" raises.
    cuda_graph: the forward and backward of each training shape (of a micro-batch, where there are any) are captured at
    its first batch and replayed as one launch; loss and optimizer stay as they are, validation and other shapes too.
    For one process with a GPU, and for modules that follow each forward by its backward; on_failure
    holds for it as well. What hooks and Python code in the network do, they do at the capture only.
    When memory runs out, captured graphs are released and captured again in the smaller size; with a compile_mode that
    makes graphs the fit continues in the same mode without graphs. For this the module calls `on_out_of_memory`.
    gradient_checkpointing: timm's, less memory for more time.
    Precision, fused and deterministic are the Trainer's and the optimizer's.

    Logs nothing by step; `summary()` has `startup/compile_seconds` and `startup/cuda_graph_seconds`.

    Raises ConfigError for options that do not go together.
    """

    def __init__(
        self,
        *,
        channels_last: bool = True,
        tf32: bool = True,
        cudnn_benchmark: bool = True,
        compile: bool = False,
        compile_mode: str = "default",
        fullgraph: bool = False,
        cuda_graph: bool = False,
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
        if cuda_graph and gradient_checkpointing:
            raise ConfigError(
                "callbacks.acceleration.cuda_graph=true cannot capture what gradient_checkpointing=true does to the "
                "random state; set one of them to false"
            )
        if cuda_graph and compile and compile_mode in WITHOUT_GRAPHS:
            raise ConfigError(
                f"callbacks.acceleration.compile_mode={compile_mode} makes CUDA graphs of its own; beside "
                "cuda_graph=true use compile_mode=default or max-autotune-no-cudagraphs, or set cuda_graph=false"
            )
        self.channels_last = channels_last
        self.tf32 = tf32
        self.cudnn_benchmark = cudnn_benchmark
        self.compile = compile
        self.compile_mode = compile_mode
        self.fullgraph = fullgraph
        self.cuda_graph = cuda_graph
        self.gradient_checkpointing = gradient_checkpointing
        self.on_failure = on_failure
        self.network = network
        self.compile_seconds: float | None = None
        self.cuda_graph_seconds: float | None = None
        self._tried: set[torch.Size] = set()
        self._captured: set[torch.Size] = set()
        self._compiled: CompiledForward | None = None
        self._graphed: GraphedForward | None = None
        self._before: tuple[str, bool, bool] | None = None
        self._recompile_limit: int | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        net = self._net(pl_module)
        self._mode = _mode_on(trainer.strategy.root_device, self.compile_mode)
        if self.compile and self._mode in WITHOUT_GRAPHS and not getattr(pl_module, "set_to_none", True):
            raise ConfigError(
                f"callbacks.acceleration.compile_mode={self._mode} makes CUDA graphs, which write over the gradients "
                "that model.set_to_none=false keeps; set model.set_to_none=true, or use compile_mode="
                f"{WITHOUT_GRAPHS[self._mode]}"
            )
        self._before = _switches()
        search = self.cudnn_benchmark and not torch.are_deterministic_algorithms_enabled()
        _set_switches("high" if self.tf32 else "highest", self.tf32, search)
        if self.channels_last:
            net.to(memory_format=torch.channels_last)
        if self.gradient_checkpointing:
            _checkpoint_gradients(net)
        if self.compile and self._mode != self.compile_mode:
            rank_zero_info(f"acceleration: compile mode {self.compile_mode} is for GPUs; {self._mode} on this CPU")
        if self.cuda_graph:
            self.cuda_graph = _can_graph(trainer)
        self._tried, self._captured, self._compiled = set(), set(), None
        on = [name for name in _acting_switches(trainer.strategy.root_device) if getattr(self, name)]
        on += [f"compile ({self._mode})"] if self.compile else []
        rank_zero_info(f"acceleration: {', '.join(on) or 'nothing'} on")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._lay_out(batch)
        self._compile_new(trainer, pl_module, batch)
        while self.cuda_graph and (images := _first_new(_parts(pl_module, batch), self._captured)) is not None:
            self._capture(trainer, pl_module, images)

    def on_out_of_memory(self, trainer: Trainer, pl_module: LightningModule, batch: Any) -> None:
        """The step of `batch` is about to be done again, in smaller micro-batches."""
        self._release_graphs()
        if self.compile:
            self._leave_graph_mode()
            self._compile_new(trainer, pl_module, batch)

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
        if self._recompile_limit is not None:
            torch._dynamo.config.recompile_limit = self._recompile_limit
            self._recompile_limit = None
        self._release_graphs()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")  # which Lightning leaves out after an error

    def summary(self) -> dict[str, float]:
        seconds = {"compile_seconds": self.compile_seconds, "cuda_graph_seconds": self.cuda_graph_seconds}
        return {f"startup/{name}": value for name, value in seconds.items() if value is not None}

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

    def _compile_new(self, trainer: Trainer, pl_module: LightningModule, batch: Any) -> None:
        """For the shapes of the batch's micro-batches that were not tried yet."""
        while self.compile and (images := _first_new(_parts(pl_module, batch), self._tried)) is not None:
            self._compile(trainer, pl_module, images)

    def _compile(self, trainer: Trainer, pl_module: LightningModule, images: Tensor) -> None:
        if self._compiled is None:
            self._compiled = CompiledForward(self._net(pl_module), mode=self._mode, fullgraph=self.fullgraph)
        self._allow_recompilations(len(self._tried))
        began, failure = time.perf_counter(), None
        try:
            with _training_context(trainer, images, graphed=self.cuda_graph), _seen_by_ddp(trainer):
                self._compiled.attempt(images)
        except Exception as error:
            if self.on_failure == "stop":
                raise
            failure, out_of_memory = _reason(error), ran_out(error)
        seconds = time.perf_counter() - began
        self.compile_seconds = (self.compile_seconds or 0.0) + seconds
        shape = tuple(images.shape)
        if failure is None:
            rank_zero_info(f"acceleration: compiled for images of {shape} in {seconds:.1f} s")
        elif out_of_memory:  # the step, which follows, takes smaller micro-batches if it must
            rank_zero_info(f"acceleration: out of memory when first compiled for images of {shape}: {failure}")
            self._leave_graph_mode()
        else:
            self._release_graphs()  # which were captured compiled
            self._compiled.release()
            self.compile = False
            rank_zero_info(f"acceleration: not compiled, going on eagerly: {failure}")

    def _leave_graph_mode(self) -> None:
        """Continue in the same mode without CUDA graphs: torch's do not recover from an error in a recording."""
        if self._compiled is None or self._mode not in WITHOUT_GRAPHS:
            return
        self._compiled.release()
        self._compiled, without = None, WITHOUT_GRAPHS[self._mode]
        self._tried.clear()
        rank_zero_info(f"acceleration: out of memory: compile mode {without} from here on instead of {self._mode}")
        self._mode = without

    def _allow_recompilations(self, num_shapes: int) -> None:
        """As many as there are shapes, beside those that torch allows to other code."""
        if self._recompile_limit is None:
            self._recompile_limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = self._recompile_limit + num_shapes

    def _capture(self, trainer: Trainer, pl_module: LightningModule, images: Tensor) -> None:
        began = time.perf_counter()
        try:
            if self._graphed is None:
                self._graphed = GraphedForward(self._net(pl_module), capture_on_gpu())
            with _training_context(trainer, images, graphed=True):
                self._graphed.capture(images)
        except Exception as error:
            if self.on_failure == "stop":
                raise
            self.cuda_graph = ran_out(error)  # fewer images may fit
            if not self.cuda_graph:
                self._release_graphs()
            rank_zero_info(f"acceleration: no CUDA graph of {tuple(images.shape)}, going on without: {_reason(error)}")
            return
        seconds = time.perf_counter() - began
        self.cuda_graph_seconds = (self.cuda_graph_seconds or 0.0) + seconds
        rank_zero_info(f"acceleration: CUDA graph of {tuple(images.shape)} captured in {seconds:.1f} s")

    def _release_graphs(self) -> None:
        if self._graphed is not None:
            self._graphed.release()
            self._graphed = None
        self._captured.clear()


def _mode_on(device: torch.device, asked: str) -> str:
    """A CPU has one way to compile."""
    return "default" if device.type == "cpu" else asked


def _parts(pl_module: LightningModule, batch: Any) -> list[Tensor]:
    """One micro-batch of each number of images that occurs in the batch."""
    images = _images(batch)
    sizes = part_sizes(len(images), getattr(pl_module, "micro_batch_size", None))
    return [images[:num] for num in dict.fromkeys(sizes)]


def _first_new(parts: list[Tensor], known: set[torch.Size]) -> Tensor | None:
    """The first part whose shape is not in `known`, which then has it."""
    for images in parts:
        if images.shape not in known:
            known.add(images.shape)
            return images
    return None


def _images(batch: Any) -> Tensor:
    if not isinstance(batch, list) and not hasattr(batch, "images"):
        raise ConfigError(
            f"callbacks.acceleration: no images in a batch that is a {type(batch).__name__}; expected a list "
            "[images, ...] or an object with `images`; set callbacks.acceleration.channels_last and compile to false"
        )
    images: Tensor = batch[0] if isinstance(batch, list) else batch.images
    return images


@contextmanager
def _training_context(trainer: Trainer, images: Tensor, *, graphed: bool) -> Iterator[None]:
    """The precision that a training step has; `graphed`: as a graph of it is captured."""
    with (
        trainer.precision_plugin.forward_context(),
        without_autocast_cache(images.device) if graphed else nullcontext(),
    ):
        yield


def _seen_by_ddp(trainer: Trainer) -> AbstractContextManager[None]:
    """Between processes the network is compiled in parts, whose gradients are sent while the backward goes on."""
    return getattr(trainer.model, "_inside_ddp_forward", nullcontext)()


def _can_graph(trainer: Trainer) -> bool:
    """Raises ConfigError where it cannot be mended by going on without."""
    if trainer.world_size > 1:
        raise ConfigError(
            f"callbacks.acceleration.cuda_graph=true is for one process, here are {trainer.world_size} "
            "(trainer.devices, trainer.num_nodes), whose gradients are averaged inside the backward; "
            "set cuda_graph=false, or compile=true with compile_mode=reduce-overhead"
        )
    if trainer.strategy.root_device.type != "cuda":
        rank_zero_info(f"acceleration: a CUDA graph is for GPUs; none on this {trainer.strategy.root_device.type}")
        return False
    return True


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def _checkpoint_gradients(net: nn.Module) -> None:
    enable: Any = getattr(net, "set_grad_checkpointing", None)
    if enable is None:
        remedy = "set callbacks.acceleration.gradient_checkpointing=false"
        raise ConfigError(f"{type(net).__name__} has no gradient checkpointing; {remedy}")
    enable(True)


def _acting_switches(device: torch.device) -> list[str]:
    """Names of the switches that change something on `device`, if they are on.

    TF32 needs a GPU of compute capability 8.0 or more (NVIDIA's CUDA C++ Programming Guide, "Compute Capabilities").
    """
    on_gpu = device.type == "cuda"
    acts = {
        "channels_last": True,
        "tf32": on_gpu and torch.cuda.get_device_capability(device) >= (8, 0),
        "cudnn_benchmark": on_gpu and not torch.are_deterministic_algorithms_enabled(),
        "cuda_graph": on_gpu,
        "gradient_checkpointing": True,
    }
    return [name for name in acts if acts[name]]


def _switches() -> tuple[str, bool, bool]:
    cudnn = torch.backends.cudnn
    return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark


def _set_switches(matmul_precision: str, conv_tf32: bool, benchmark: bool) -> None:
    torch.set_float32_matmul_precision(matmul_precision)
    torch.backends.cudnn.allow_tf32 = conv_tf32
    torch.backends.cudnn.benchmark = benchmark

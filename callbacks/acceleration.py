"""Makes the same network train faster: memory format, TF32, cuDNN's search, compile, CUDA graph, gradient
checkpointing."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from imagenet_opt.data.batch import images_of, need_images, set_images
from imagenet_opt.data.index.index_cache import cache_folder
from imagenet_opt.errors import ConfigError
from imagenet_opt.model.micro_batch import part_sizes
from imagenet_opt.model.shape_compiler import (
    AUTO,
    WITHOUT_GRAPHS,
    CodePlace,
    ShapeCompiler,
    earns_compiling,
    forbids_graph,
    reason,
)
from imagenet_opt.private_api import inside_ddp_forward
from imagenet_opt.run.checkpoint.names import COMPILED_CODE

_REMEDY = "set callbacks.acceleration.channels_last and compile to false"


class Acceleration(Callback):
    """Independent switches for the network at `network` (an attribute of the module).

    channels_last: memory order of the network and the images. tf32: use TF32 for float32 matrix products and
    convolutions. cudnn_benchmark: let cuDNN time its algorithms for each shape. gradient_checkpointing: timm's; needs
    less memory and more time.

    compile: torch.compile in place, so that the keys of checkpoints do not change. At the first batch of a shape (or
    of its micro-batches), a forward and backward compile the network; then buffers, gradients and random state are
    restored. torch's limit of recompilations is raised by the number of shapes. Validation is not compiled.
    on_failure: "eager" logs the reason and continues without compile or cuda_graph, "stop" raises.
    "auto": on if the run trains on a GPU and is long enough to earn the compilation back (`EARNED_PIXELS`), decided at
    the first batch by the estimated steps. The decision is in checkpoints, so that a resumed run trains as it began.

    stored_code: compiled code is kept in the Trainer's default_root_dir, with which a restart on another machine need
    not compile again. Stored code is code: a run executes it. On this machine code is kept in imagenet_opt/compiled of
    the user's cache folder, or in TORCHINDUCTOR_CACHE_DIR.

    cuda_graph: the forward and backward of each training shape are captured at its first batch and replayed as one
    launch. Loss, optimizer, validation and other shapes run as usual, and so does a forward before the backward of the
    previous one. A CUDA graph needs one process with a GPU. Hooks and Python code in the network run only at the
    capture. "auto": on where nothing forbids it (`forbids_graph`); a failed capture never stops the run.

    Both "auto" are off for batches in which this callback finds no images.

    From the first step on, Python's garbage collector no longer looks at the objects that exist until then: libraries
    and the compiled network. A full collection would stop the training for up to a second.

    When memory runs out, the module calls `on_out_of_memory`: captured graphs are released and captured again in the
    smaller size; with a compile_mode that makes graphs, the fit continues in the same mode without graphs.

    | key of `summary()`; nothing is logged by step | unit |
    |---|---|
    | `startup/compile_seconds` | seconds of compiling, all shapes together |
    | `startup/cuda_graph_seconds` | seconds of capturing CUDA graphs, all shapes together |

    Raises ConfigError for options that contradict each other.
    """

    def __init__(
        self,
        *,
        channels_last: bool = True,
        tf32: bool = True,
        cudnn_benchmark: bool = True,
        compile: bool | Literal["auto"] = "auto",
        compile_mode: str = "default",
        fullgraph: bool = False,
        cuda_graph: bool | Literal["auto"] = "auto",
        gradient_checkpointing: bool = False,
        on_failure: Literal["eager", "stop"] = "eager",
        stored_code: bool = True,
        network: str = "net",
    ) -> None:
        for name, value in (("compile", compile), ("cuda_graph", cuda_graph)):
            if value not in (True, False, AUTO):
                raise ConfigError(f"callbacks.acceleration.{name}={value!r} must be true, false or auto")
        if cuda_graph is True and gradient_checkpointing:
            raise ConfigError(
                "callbacks.acceleration.cuda_graph=true cannot capture how gradient_checkpointing=true restores the "
                "random state; set one of the two to false"
            )
        self.channels_last, self.tf32, self.cudnn_benchmark = channels_last, tf32, cudnn_benchmark
        self.gradient_checkpointing = gradient_checkpointing
        self.compile, self.cuda_graph, self.network = compile, cuda_graph, network
        self.stored_code = stored_code
        self.compiler = ShapeCompiler(
            compile=bool(compile),
            compile_mode=compile_mode,
            fullgraph=fullgraph,
            cuda_graph=cuda_graph is True,
            on_failure=on_failure,
            on_graph_failure="eager" if cuda_graph == AUTO else on_failure,
        )
        if compile == AUTO:
            self.compiler.compile = False  # until the first batch
        self._is_open = self._is_frozen = False
        self._began_compiled: bool | None = None
        self._before: tuple[str, bool, bool] | None = None

    @property
    def compile_seconds(self) -> float | None:
        return self.compiler.compile_seconds

    @property
    def cuda_graph_seconds(self) -> float | None:
        return self.compiler.cuda_graph_seconds

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        net, device, compiler = self._net(pl_module), trainer.strategy.root_device, self.compiler
        self._began_compiled = None  # of the fit before; Lightning restores a checkpoint's state later
        file = Path(trainer.default_root_dir) / COMPILED_CODE if self.stored_code else None
        code = CodePlace(file, cache_folder(None) / "compiled", writes=trainer.global_rank == 0)
        compiler.begin(net, device, partial(_training, trainer), say=rank_zero_info, code=code)
        if self.compile and compiler.mode in WITHOUT_GRAPHS and not getattr(pl_module, "set_to_none", True):
            raise ConfigError(
                f"callbacks.acceleration.compile_mode={compiler.mode} makes CUDA graphs, which write over the "
                "gradients that model.set_to_none=false keeps; set model.set_to_none=true, or use compile_mode="
                f"{WITHOUT_GRAPHS[compiler.mode]}"
            )
        self._before = _switches()
        search = self.cudnn_benchmark and not torch.are_deterministic_algorithms_enabled()
        _set_switches("high" if self.tf32 else "highest", self.tf32, search)
        if self.channels_last:
            net.to(memory_format=torch.channels_last)
        if self.gradient_checkpointing:
            enable: Any = getattr(net, "set_grad_checkpointing", None)
            if enable is None:
                remedy = "set callbacks.acceleration.gradient_checkpointing=false"
                raise ConfigError(f"{type(net).__name__} has no gradient checkpointing; {remedy}")
            enable(True)
        self._is_open = self.compile == AUTO and device.type == "cuda"
        if self.cuda_graph == AUTO:
            compiler.cuda_graph = not forbids_graph(
                device=device.type,
                num_processes=trainer.world_size,
                gradient_checkpointing=self.gradient_checkpointing,
                compile=self.compile,
                compile_mode=compiler.mode,
            )
        elif compiler.cuda_graph:
            compiler.cuda_graph = _can_graph(trainer)
        rank_zero_info(f"acceleration: {', '.join(self._on(device)) or 'nothing'} on")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._lay_out(batch)
        if AUTO in (self.compile, self.cuda_graph):
            self._decide(trainer, batch)
        if self.compiler.compile or self.compiler.cuda_graph:
            self.compiler.prepare(_parts(pl_module, batch))
        if not self._is_frozen:
            self._is_frozen = True
            gc.collect()
            gc.freeze()

    def on_out_of_memory(self, trainer: Trainer, pl_module: LightningModule, batch: Any) -> None:
        """Called before the step of `batch` is repeated in smaller micro-batches, or a batch of a validation without
        the memory of CUDA graphs, which the next training step captures again."""
        if self.compiler.compile or self.compiler.cuda_graph:
            self.compiler.shrink(_parts(pl_module, batch) if trainer.training else ())

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *_: Any) -> None:
        self._lay_out(batch)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._began_compiled is None else {"compile": self._began_compiled}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._began_compiled = state_dict.get("compile")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._is_frozen:
            self._is_frozen = False
            gc.unfreeze()
        if self._before is not None:
            _set_switches(*self._before)
            self._before = None
        self.compiler.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")  # Lightning does not call this hook after an error

    def summary(self) -> dict[str, float]:
        seconds = {"compile_seconds": self.compile_seconds, "cuda_graph_seconds": self.cuda_graph_seconds}
        return {f"startup/{name}": value for name, value in seconds.items() if value is not None}

    def _decide(self, trainer: Trainer, batch: Any) -> None:
        """Decide compile=auto at the first batch; give up both "auto" if the batch has no images."""
        if isinstance(batch, tuple) or (images := images_of(batch)) is None:
            self._is_open = False
            self.compiler.compile = self.compiler.compile and self.compile is True
            self.compiler.cuda_graph = self.compiler.cuda_graph and self.cuda_graph is True
            return
        if not self._is_open:
            return
        self._is_open = False
        num_images = trainer.estimated_stepping_batches * trainer.accumulate_grad_batches
        num_images, side = num_images * len(images) * trainer.world_size, images.shape[-1]
        why = "as this run began; true or false changes it"
        if self._began_compiled is None:
            self._began_compiled, why = earns_compiling(num_images, side), reason(num_images, side)
        self.compiler.compile = self._began_compiled
        mode = f"compile ({self.compiler.mode})"
        rank_zero_info(f"acceleration: {mode} {'on' if self.compiler.compile else 'off'}: {why}")

    def _net(self, pl_module: LightningModule) -> nn.Module:
        net = getattr(pl_module, self.network, None)
        if not isinstance(net, nn.Module):
            raise ConfigError(
                f"callbacks.acceleration.network={self.network!r} is not a network in {type(pl_module).__name__}"
            )
        return net

    def _lay_out(self, batch: Any) -> None:
        """Put the images into the network's memory order, in place."""
        if self.channels_last or hasattr(batch, "images"):
            layout = torch.channels_last if self.channels_last else torch.contiguous_format
            set_images(batch, need_images(batch, _REMEDY).contiguous(memory_format=layout))

    def _on(self, device: torch.device) -> list[str]:
        """The switches that are on; without a GPU, only those that act there too."""
        names = ["channels_last", "gradient_checkpointing"]
        if device.type == "cuda":
            if torch.cuda.get_device_capability(device) >= (8, 0):
                names.append("tf32")
            if not torch.are_deterministic_algorithms_enabled():
                names.append("cudnn_benchmark")
        modes = {"cuda_graph": self.compiler.cuda_graph, f"compile ({self.compiler.mode})": self.compiler.compile}
        return [name for name in names if getattr(self, name)] + [name for name, is_on in modes.items() if is_on]


def _parts(pl_module: LightningModule, batch: Any) -> list[Tensor]:
    """The images of one micro-batch for each size of micro-batch in the batch."""
    images = need_images(batch, _REMEDY)
    sizes = part_sizes(len(images), getattr(pl_module, "micro_batch_size", None))
    return [images[:num] for num in dict.fromkeys(sizes)]


@contextmanager
def _training(trainer: Trainer, *, compiling: bool) -> Iterator[None]:
    """The precision context of a training step.

    compiling: with several processes, the network is compiled in parts, so that gradients are sent during the backward.
    """
    inside_ddp = inside_ddp_forward(trainer.model) if compiling else nullcontext()
    with trainer.precision_plugin.forward_context(), inside_ddp:
        yield


def _can_graph(trainer: Trainer) -> bool:
    """Whether a CUDA graph is possible here. Raises ConfigError with several processes."""
    if trainer.world_size > 1:
        raise ConfigError(
            f"callbacks.acceleration.cuda_graph=true needs a single process, not {trainer.world_size} "
            "(trainer.devices, trainer.num_nodes), whose gradients are averaged inside the backward; "
            "set cuda_graph=false, or compile=true with compile_mode=reduce-overhead"
        )
    if trainer.strategy.root_device.type != "cuda":
        rank_zero_info(f"acceleration: a CUDA graph needs a GPU; none on this {trainer.strategy.root_device.type}")
        return False
    return True


def _switches() -> tuple[str, bool, bool]:
    cudnn = torch.backends.cudnn
    return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark


def _set_switches(matmul_precision: str, conv_tf32: bool, benchmark: bool) -> None:
    torch.set_float32_matmul_precision(matmul_precision)
    torch.backends.cudnn.allow_tf32 = conv_tf32
    torch.backends.cudnn.benchmark = benchmark

"""Compiles a network, and captures CUDA graphs of it, for each shape of images before its first step."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.compiler.config
from torch import Tensor, nn

from imagenet_opt import private_api
from imagenet_opt.errors import ConfigError, named_first_line
from imagenet_opt.model.cuda_graph import GraphedForward, capture_on_gpu, move_gradients, without_autocast_cache
from imagenet_opt.model.rollback import Rollback
from imagenet_opt.model.stored_code import load_code, save_code, use_private_cache
from imagenet_opt.out_of_memory import ran_out

WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Each mode of torch.compile that makes CUDA graphs -> the same mode without CUDA graphs."""
AUTO: Literal["auto"] = "auto"
EARNED_PIXELS = 5e10
"""Pixels of all training images of a run from which compiling earns its time back: one million images of 224 px.

Measured with ResNet-50 on an H100 (docs/results_gpu.md): compiling took 72 s, and training in bfloat16 rose from 4,110
to 5,728 images/s, which saves 69 microseconds per image of 224 px; 72 s / 69 us are 1.05 million images. A slower GPU
is reckoned to save more time per image, and so to need fewer images."""
_torch_config: Any = torch.compiler.config
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
Training = Callable[..., AbstractContextManager[None]]
"""(*, compiling) -> the context in which a training step calls the network. compiling: for torch.compile."""


def earns_compiling(num_images: float, side: float) -> bool:
    """Whether a run on a GPU trains long enough to compile. num_images: of the whole run, all processes together,
    `inf` for a run without end. side: width in pixels of its first images."""
    return num_images * side**2 >= EARNED_PIXELS


def reason(num_images: float, side: float) -> str:
    """The numbers behind `earns_compiling`, for the user."""
    least = EARNED_PIXELS / side**2
    num = f"{num_images:,.0f}" if num_images < math.inf else "endlessly many"
    return f"the run trains {num} images of {side:.0f} px, and compiling pays from {least:,.0f} on"


def forbids_graph(
    *, device: str, num_processes: int, gradient_checkpointing: bool, compile: bool | Literal["auto"], compile_mode: str
) -> bool:
    """Whether cuda_graph=auto is off. A compile mode that makes its own graphs forbids it, also while compile=auto is
    undecided."""
    own_graphs = bool(compile) and compile_mode in WITHOUT_GRAPHS
    return device != "cuda" or num_processes > 1 or gradient_checkpointing or own_graphs


@dataclass(frozen=True)
class CodePlace:
    """Where compiled code is kept. file: for a restart, perhaps on another machine; None: not kept. cache: a folder of
    this machine. writes: whether this process writes `file`."""

    file: Path | None
    cache: Path
    writes: bool


@dataclass(kw_only=True)
class ShapeCompiler:
    """The class `Acceleration` documents the options. After a failure with on_failure="eager", `compile` or
    `cuda_graph` is False. compile_seconds, cuda_graph_seconds: of all shapes so far; None without any.

    Raises ConfigError for options that contradict each other.
    """

    compile: bool
    compile_mode: str
    fullgraph: bool
    cuda_graph: bool
    on_failure: Literal["eager", "stop"]
    on_graph_failure: Literal["eager", "stop"]
    compile_seconds: float | None = field(default=None, init=False)
    cuda_graph_seconds: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.compile_mode not in _MODES:
            modes = ", ".join(_MODES)
            raise ConfigError(f"callbacks.acceleration.compile_mode={self.compile_mode!r} must be one of {modes}")
        if self.on_failure not in ("eager", "stop"):
            raise ConfigError(f"callbacks.acceleration.on_failure={self.on_failure!r} must be eager or stop")
        if self.cuda_graph and self.compile and self.compile_mode in WITHOUT_GRAPHS:
            raise ConfigError(
                f"callbacks.acceleration.compile_mode={self.compile_mode} makes CUDA graphs of its own; beside "
                "cuda_graph=true use compile_mode=default or max-autotune-no-cudagraphs, or set cuda_graph=false"
            )
        self.mode = self.compile_mode
        self._tried, self._captured = set[torch.Size](), set[torch.Size]()
        self._compiled: CompiledForward | None = None
        self._graphed: GraphedForward | None = None
        self._recompile_limit: int | None = None

    def begin(
        self, net: nn.Module, device: torch.device, training: Training, say: Callable[[str], None], code: CodePlace
    ) -> None:
        """Start a fit of `net`."""
        self._net, self._device, self._training = net, device, training
        self._say, self._code = say, code
        self.mode = _mode_on(device, self.compile_mode)
        if self.compile and self.mode != self.compile_mode:
            say(f"acceleration: compile mode {self.compile_mode} needs a GPU; this CPU uses {self.mode}")
        self._tried, self._captured, self._compiled = set[torch.Size](), set[torch.Size](), None

    def prepare(self, parts: Sequence[Tensor]) -> None:
        """Compile or capture for these parts: images (N, 3, H, W), as the next step passes them to the network."""
        while self.compile and (images := _first_new(parts, self._tried)) is not None:
            self._compile(images)
        while self.cuda_graph and (images := _first_new(parts, self._captured)) is not None:
            self._capture(images)

    def shrink(self, parts: Sequence[Tensor]) -> None:
        """After memory ran out: release all graphs, and capture none before the step has been repeated with these
        smaller parts; none after a validation."""
        self._release_graphs()
        if self.compile:
            self._leave_graph_mode()
        while self.compile and (images := _first_new(parts, self._tried)) is not None:
            self._compile(images)

    def end(self) -> None:
        """Release graphs and restore torch's limit of recompilations."""
        if self._recompile_limit is not None:
            _torch_config.recompile_limit = self._recompile_limit
            self._recompile_limit = None
        self._release_graphs()

    def _compile(self, images: Tensor) -> None:
        began = time.perf_counter()
        if self._compiled is None:
            self._compiled = CompiledForward(self._net, mode=self.mode, fullgraph=self.fullgraph)
            use_private_cache(self._code.cache, self._say)
            if self._code.file is not None:
                load_code(self._code.file, self._device, self._say)
        self._allow_recompilations()
        failure, out_of_memory = self._failure_of(partial(self._attempt, images), stops=self.on_failure == "stop")
        if failure is None and self._code.file is not None and self._code.writes:
            save_code(self._code.file, self._device, self._say)
        seconds = time.perf_counter() - began
        self.compile_seconds = (self.compile_seconds or 0.0) + seconds
        shape = tuple(images.shape)
        if failure is None:
            self._say(f"acceleration: compiled for images of {shape} in {seconds:.1f} s")
        elif out_of_memory:  # the following step halves its micro-batches if it runs out of memory too
            self._say(f"acceleration: out of memory when first compiled for images of {shape}: {failure}")
            self._leave_graph_mode()
        else:
            self._release_graphs()  # captured from the compiled network
            self._compiled.release()
            self.compile = False
            self._say(f"acceleration: compilation failed, training continues without it: {failure}")

    def _attempt(self, images: Tensor) -> None:
        with (
            self._training(compiling=True),
            # Created inside the training context, whose precision it keeps.
            without_autocast_cache(images.device) if self.cuda_graph else nullcontext(),
        ):
            self._compiled.attempt(images)  # type: ignore[union-attr]

    def _failure_of(self, work: Callable[[], None], *, stops: bool) -> tuple[str | None, bool]:
        """Do the work, and once more without the graphs of other sizes if memory runs out beside them. Returns the
        first line of the error, None without one, and whether memory ran out; or raises the error if it `stops` the
        run."""
        while True:
            holds_graphs = bool(self._graphed and self._graphed.num_graphs)
            try:
                work()
                return None, False
            except Exception as error:
                failure, out_of_memory = named_first_line(error), ran_out(error)
                if stops and not (out_of_memory and holds_graphs):
                    raise
            # Here the error, whose frames hold memory of the work, is gone.
            if not (out_of_memory and holds_graphs):
                return failure, out_of_memory
            self._free_graphs()
            self._say("acceleration: out of memory beside the CUDA graphs of other sizes of images, which end here")

    def _leave_graph_mode(self) -> None:
        """Continue in the same mode without CUDA graphs, because torch's graphs do not recover from an error while
        recording."""
        if self._compiled is None or self.mode not in WITHOUT_GRAPHS:
            return
        self._compiled.release()
        self._compiled, without = None, WITHOUT_GRAPHS[self.mode]
        self._tried.clear()
        self._say(f"acceleration: out of memory: compile mode {without} from here on instead of {self.mode}")
        self.mode = without

    def _allow_recompilations(self) -> None:
        """Allow one recompilation per shape, in addition to torch's limit for other code."""
        if self._recompile_limit is None:
            self._recompile_limit = _torch_config.recompile_limit
        _torch_config.recompile_limit = self._recompile_limit + len(self._tried)

    def _capture(self, images: Tensor) -> None:
        began = time.perf_counter()
        stops = self.on_graph_failure == "stop"
        failure, out_of_memory = self._failure_of(partial(self._capture_once, images), stops=stops)
        if failure is not None:
            self._free_graphs()  # for the step that follows
            self.cuda_graph = out_of_memory
            self._say(f"acceleration: no CUDA graph of {tuple(images.shape)}, training without it: {failure}")
            return
        seconds = time.perf_counter() - began
        self.cuda_graph_seconds = (self.cuda_graph_seconds or 0.0) + seconds
        self._say(f"acceleration: CUDA graph of {tuple(images.shape)} captured in {seconds:.1f} s")

    def _capture_once(self, images: Tensor) -> None:
        if self._graphed is None:
            self._graphed = GraphedForward(self._net, capture_on_gpu())
        with self._training(compiling=False), without_autocast_cache(images.device):
            self._graphed.capture(images)

    def _free_graphs(self) -> None:
        """Free the memory of all graphs. Their sizes are not captured again, or two sizes that do not fit beside each
        other would take turns."""
        if self._graphed is not None:
            self._graphed.release()
            self._graphed = None

    def _release_graphs(self) -> None:
        """Free the memory of all graphs, and capture each size again when it comes."""
        self._free_graphs()
        self._captured.clear()


class CompiledForward:
    """Compiles `net` in place for forward passes that record gradients; others, such as validation, run uncompiled.

    This object runs in place of the forward of `net`, which copies, pickles and the state_dict of the network do not
    contain.

    In modes with CUDA graphs, gradients are in the graphs' memory, which the next forward frees. Gradients of an
    earlier micro-batch are therefore moved before the next forward. Source:
    https://github.com/pytorch/pytorch/issues/96693, wrong accumulated gradients.
    """

    def __init__(self, net: nn.Module, *, mode: str, fullgraph: bool) -> None:
        net.compile(mode=mode, fullgraph=fullgraph, dynamic=False)
        self._net = net
        self._compiled = private_api.forward_in_place(net)
        self._makes_graphs = mode in WITHOUT_GRAPHS
        self._parameters = list(net.parameters()) if self._makes_graphs else []
        private_api.set_forward_in_place(net, self)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return private_api.plain_forward(self._net)(*args, **options)
        move_gradients(self._parameters)
        return self._compiled(*args, **options)

    def attempt(self, images: Tensor) -> None:
        """Run a forward and backward pass, which compiles for the shape of `images`; buffers, gradients and random
        state do not change. In modes with CUDA graphs two, because torch records its graphs in the second."""
        before = Rollback(self._net.buffers())
        gradients = [None if tensor.grad is None else tensor.grad.clone() for tensor in self._net.parameters()]
        try:
            # Otherwise torch silently runs uncompiled beyond its limit.
            with _torch_config.patch(fail_on_recompile_limit_hit=True):
                for _ in range(2 if self._makes_graphs else 1):
                    self._net.zero_grad()
                    self._net(images).float().sum().backward()
            if images.is_cuda:
                torch.cuda.synchronize()
        finally:
            before.restore()
            for parameter, gradient in zip(self._net.parameters(), gradients, strict=True):
                parameter.grad = gradient

    def release(self) -> None:
        """Return to the uncompiled network, and release torch's CUDA graphs."""
        private_api.set_forward_in_place(self._net, None)
        torch.compiler.reset()
        torch.cuda.empty_cache()


def _mode_on(device: torch.device, mode: str) -> str:
    """The mode for this device; CPUs have no mode but "default"."""
    return "default" if device.type == "cpu" else mode


def _first_new(parts: Sequence[Tensor], known: set[torch.Size]) -> Tensor | None:
    """The first part whose shape is not in `known`; adds the shape."""
    for images in parts:
        if images.shape not in known:
            known.add(images.shape)
            return images
    return None

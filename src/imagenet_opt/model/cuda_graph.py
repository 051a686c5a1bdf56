"""A network's forward and backward passes as CUDA graphs, one per shape of images."""

import gc
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from imagenet_opt import private_api
from imagenet_opt.model.rollback import Rollback

Capture = Callable[[nn.Module, tuple[Tensor]], nn.Module]
"""(network, (images,)) -> a module that replays the captured network, as torch.cuda.make_graphed_callables returns."""


class GraphedForward:
    """Replays the training of `net` for the captured shapes, and calls the network for all others.

    This object runs in place of the forward of `net`, which copies, pickles and the state_dict of the network do not
    contain. A compiled network is captured compiled.

    A graph reads and writes the memory of its capture. So a graph is used only while parameters and buffers are at the
    same addresses, the same parameters are trainable, and every layer is in the same mode. Images and logits are
    copied, and existing gradients are moved before a replay would overwrite them (source:
    https://github.com/pytorch/pytorch/issues/181723, wrong accumulated gradients, because the first summand is the
    graph's own memory). While the backward of a forward has not begun, the next forward calls the network, since a
    replay would overwrite what that backward reads.
    """

    def __init__(self, net: nn.Module, capture: Capture) -> None:
        self._net, self._capture = net, capture
        self._before = private_api.forward_in_place(net)
        self._call: Callable[..., Any] = self._before or private_api.plain_forward(net)
        self._parameters = list(net.parameters())
        self._tensors: list[Tensor] = [*self._parameters, *net.buffers()]
        self._layers = list(net.modules())
        self._graphs: dict[Hashable, tuple[nn.Module, tuple[list[Any], ...]]] = {}
        self._backward: weakref.ref[_Backward] | None = None
        private_api.set_forward_in_place(net, self)

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def capture(self, images: Tensor) -> None:
        """Capture for images (N, 3, H, W), in the precision context of training; buffers, random state and gradients
        do not change."""
        before, module = Rollback(self._net.buffers()), _CapturedModule(self._net, self._call)
        _free_workspaces(images.device)
        try:
            with without_autocast_cache(images.device):
                graph = self._capture(module, (images.detach().clone(),))
        finally:
            before.restore()
            _free_workspaces(images.device)
        module.release_logits()
        self._graphs[_key(images)] = graph, self._state()

    def release(self) -> None:
        """Restore the network's own forward, and free the graphs' memory."""
        private_api.set_forward_in_place(self._net, self._before)
        self._graphs.clear()
        is_frozen = gc.get_freeze_count() > 0
        gc.unfreeze()
        gc.collect()  # torch's graphed callables refer to themselves
        if is_frozen:
            gc.freeze()
        torch.cuda.empty_cache()

    def __call__(self, *args: Any, **options: Any) -> Any:
        if (graph := self._graph_for(args, options)) is None:
            return self._call(*args, **options)
        move_gradients(self._parameters)
        logits, backward = private_api.tree_map(torch.clone, graph(*args)), _Backward()
        for tensor in private_api.tree_leaves(logits):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(backward.begin)
        self._backward = weakref.ref(backward)
        return logits

    def _graph_for(self, args: tuple[Any, ...], options: dict[str, Any]) -> nn.Module | None:
        if not self._net.training or not torch.is_grad_enabled() or options or len(args) != 1:
            return None
        if not isinstance(args[0], Tensor) or args[0].requires_grad:
            return None
        if self._backward is not None and (backward := self._backward()) is not None and not backward.began:
            return None
        graph, state = self._graphs.get(_key(args[0]), (None, None))
        return graph if state == self._state() else None

    def _state(self) -> tuple[list[Any], ...]:
        """Everything whose change makes a graph invalid; compared in every forward."""
        addresses = [tensor.data_ptr() for tensor in self._tensors]
        trainable = [parameter.requires_grad for parameter in self._parameters]
        return addresses, trainable, [layer.training for layer in self._layers]


class _Backward:
    """Whether the backward of a forward has begun. Lives as long as autograd's nodes of that forward."""

    began = False

    def begin(self, gradient: Tensor) -> None:
        self.began = True


class _CapturedModule(nn.Module):
    """The network as torch captures it: with its parameters, but without the forward that replaces it."""

    def __init__(self, net: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.net, self.call = net, call
        self.logits: Any = None

    def forward(self, images: Tensor) -> Any:
        self.release_logits()
        self.logits = private_api.tree_map(_without_view, self.call(images))
        return self.logits

    def release_logits(self) -> None:
        """Detach the last logits, which torch keeps, from autograd's nodes, which would outlive their backward.

        Nodes of the parameters belong to the stream of the warm-up or capture. Each later backward would add its
        gradients there, wait for that stream, and warn that streams do not match.
        """
        for tensor in private_api.tree_leaves(self.logits):
            if isinstance(tensor, Tensor):
                tensor.detach_()
        self.logits = None


def _without_view(value: Any) -> Any:
    """A copy of a tensor that is a view, since a view cannot be detached in place."""
    return value.clone() if isinstance(value, Tensor) and private_api.is_view(value) else value


def move_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Move gradients out of the memory of CUDA graphs, which a replay overwrites."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.clone()


def _free_workspaces(device: torch.device) -> None:
    """Free cuBLAS's workspaces, which torch keeps for each stream for good, before and after a capture: those of a
    capture would hold blocks of hundreds of MiB. Replays still write to theirs, which lie in the graphs' own memory.
    Source: `clear_cublas_manager` in torch/_inductor/cudagraph_trees.py."""
    if device.type == "cuda":
        private_api.free_cublas_workspaces()


def capture_on_gpu() -> Capture:
    """Capture with torch. All graphs share one memory pool, because a step runs only one of them."""
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def capture(net: nn.Module, images: tuple[Tensor]) -> nn.Module:
        make: Any = torch.cuda.make_graphed_callables
        with _graph_options(stream=stream, capture_error_mode="thread_local"):
            return make(net, images, pool=pool)  # type: ignore[no-any-return]

    return capture


@contextmanager
def _graph_options(**fixed: Any) -> Iterator[None]:
    """Pass options of torch.cuda.graph that make_graphed_callables does not accept. stream: captures on one stream
    share the free memory of a pool. capture_error_mode: thread_local lets the loader's thread pin memory meanwhile."""
    plain = torch.cuda.graph

    def graph(*args: Any, **options: Any) -> torch.cuda.graph:
        return plain(*args, **options | fixed)

    torch.cuda.graph = graph  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        torch.cuda.graph = plain  # type: ignore[misc]


def without_autocast_cache(device: torch.device) -> torch.autocast:
    """Autocast without its weight cache, since a graph would not refresh the cached copies."""
    kind = device.type
    return torch.autocast(
        kind, dtype=torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False
    )


def _key(images: Tensor) -> Hashable:
    kind = images.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return images.shape, images.dtype, autocast

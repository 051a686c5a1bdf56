"""All private names of torch, Lightning and timm that this package uses, and why no public name serves.

Other files call these functions; tests/test_import_rules.py refuses a private name there. tests/test_private_api.py
checks that the installed versions have each name, so an upgrade that removes one fails in that test.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode  # tensors without data have no public name
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode  # torch documents it by this name
from torch.utils._pytree import tree_leaves as tree_leaves  # a nest of containers -> its leaves, as in torch itself
from torch.utils._pytree import tree_map as tree_map
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils.pin_memory import pin_memory as pin_memory  # what the DataLoader does to a batch

# ---- torch: one kernel for many tensors, as torch's own optimizers use it; each has no public twin.
# copy_all(targets, sources); add_to_all(targets, numbers or tensors, alpha=1); scale_all(targets, factor);
# blend_all(targets, others, weight of the others) in place; blended(tensors, others, weight).
copy_all: Callable[..., None] = torch._foreach_copy_
add_to_all: Callable[..., None] = torch._foreach_add_
scale_all: Callable[..., None] = torch._foreach_mul_
blend_all: Callable[..., None] = torch._foreach_lerp_
blended: Callable[..., tuple[Tensor, ...]] = torch._foreach_lerp


# ---- torch: tensors


def is_view(tensor: Tensor) -> bool:
    """Whether the tensor shares the memory of another one, so that `detach_` would fail."""
    return bool(tensor._is_view())


def version(tensor: Tensor) -> int:
    """Number of changes in place, which autograd counts and does not publish."""
    return tensor._version


def new_shared_storage(num_bytes: int) -> torch.UntypedStorage:
    """Uninitialised shared memory. The public `share_memory_()` first allocates as much private memory, and copies."""
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(num_bytes, device="cpu")
    return storage


def has_fast_bfloat16() -> bool:
    """Whether the CPU computes in bfloat16. `torch.cpu.get_capabilities` is not in all supported versions of torch."""
    return torch.cpu._is_avx512_bf16_supported()


def free_cublas_workspaces() -> None:
    """Free the workspaces that cuBLAS keeps for each stream, which `torch.cuda.empty_cache` does not."""
    torch._C._cuda_clearCublasWorkspaces()


# ---- torch: compiled networks


def forward_in_place(net: nn.Module) -> Any:
    """What runs instead of the network's forward, or None. `net.compile()` sets it, and no public name reads it."""
    return net._compiled_call_impl


def set_forward_in_place(net: Any, forward: Callable[..., Any] | None) -> None:
    """Let `forward` run instead of the network's own and its hooks. Copies, pickles and the state_dict of the network
    do not contain it, as they would a replaced attribute `forward`."""
    net._compiled_call_impl = forward


def plain_forward(net: nn.Module) -> Callable[..., Any]:
    """The network's forward with its hooks, without what runs instead of it."""
    return net._call_impl


def default_code_folder() -> str:
    """Where torch.compile keeps its code unless told otherwise; only its environment variable is public."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # imports much

    return default_cache_dir()


def inside_ddp_forward(model: Any) -> AbstractContextManager[Any]:
    """The state in which torch's DistributedDataParallel calls its network, for a call from outside: torch compiles
    such a network in parts. Nothing for another model."""
    inside = getattr(model, "_inside_ddp_forward", nullcontext)
    return inside()


def unscales_itself(optimizer: Any) -> bool:
    """Whether a fused optimizer divides gradients by the loss scale in its step, so that they are not divided yet."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


# ---- torch: the workers of a DataLoader; a DataLoader has no method that ends them.


def persistent_iterator(loader: Any) -> Any:
    """The iterator that holds the persistent workers of a DataLoader; None before the first iteration."""
    return loader._iterator


def drop_persistent_iterator(loader: Any) -> None:
    """Let the next iteration start new workers; the old ones end with their iterator."""
    loader._iterator = None


def expect_end_of_workers(iterator: Any) -> None:
    """Let torch report no error when a worker ends."""
    if iterator._worker_pids_set:
        vars(signal_handling)["_remove_worker_pids"](id(iterator))
        iterator._worker_pids_set = False


def queue_of_batches(iterator: Any) -> Any:
    """The queue from the workers, for an item that wakes a thread which waits for a batch."""
    return iterator._worker_result_queue


def terminate_workers(iterator: Any) -> None:
    """End all workers at once; torch waits five seconds for each."""
    for worker in iterator._workers:
        worker.terminate()


def shut_workers_down(iterator: Any) -> None:
    """Ask the workers to end, and wait for them."""
    iterator._shutdown_workers()


# ---- timm


def muon_coefficients() -> Any:
    """timm's named coefficients of Muon, by name; its public functions take them as an argument."""
    from timm.optim import muon

    return muon._COEFFICIENTS


# ---- Lightning: rows of metrics; Lightning has no hook where a row is due.


def is_row_due(trainer: Any) -> bool:
    """Whether `log_every_n_steps` batches have passed."""
    return bool(trainer._logger_connector.should_update_logs)


def is_accumulating(trainer: Any) -> bool:
    """Whether the present batch ends no step, with accumulate_grad_batches."""
    return bool(trainer.fit_loop._should_accumulate())


def logged_step(trainer: Any) -> int:
    """The step that loggers get. `trainer.global_step` counts each optimizer, and is one ahead after the step."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def go_back_one_logged_step(trainer: Any) -> None:
    trainer.fit_loop.epoch_loop._batches_that_stepped -= 1


def logged_by_module(trainer: Any) -> Mapping[str, Any]:
    """What the module logged at this batch, on the device. `logged_metrics` has it only after Lightning's row."""
    metrics: Mapping[str, Any] = trainer._logger_connector.metrics["log"]
    return metrics


def replace_rows(trainer: Any, end_step: Callable[[], None]) -> None:
    """Call `end_step` after each step instead of Lightning's row."""
    trainer._logger_connector.update_train_step_metrics = end_step


def restore_rows(trainer: Any) -> None:
    vars(trainer._logger_connector).pop("update_train_step_metrics", None)


# ---- Lightning: checkpoints and resume


def state_of_fit(trainer: Any) -> dict[str, Any]:
    """What a checkpoint holds. The public `save_checkpoint` also writes it, in this thread."""
    state: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    return state


def restore_late_loaders(trainer: Any) -> None:
    """Give loaders the states that Lightning keeps and forgets where it made the loaders before it restored its loops.
    A schedule that asks for the number of steps makes Lightning do so."""
    loop = trainer.fit_loop
    if loop._combined_loader_states_to_load and loop._data_fetcher is not None:
        loop._load_combined_loader_states()
        iter(loop._data_fetcher)


def is_validation_due(trainer: Any) -> bool:
    """Whether a validation follows the present batch; Lightning decides it in its loop alone."""
    return bool(trainer.fit_loop.epoch_loop._should_check_val_fx(trainer.fit_loop._data_fetcher))


def add_validations(trainer: Any, is_due: Callable[[], bool]) -> None:
    """Validate after the present batch also where `is_due()`; there is no hook for it."""
    loop = trainer.fit_loop.epoch_loop
    loop._should_check_val_fx = partial(_either, loop._should_check_val_fx, is_due)


def _either(by_interval: Callable[[Any], bool], is_due: Callable[[], bool], fetcher: Any) -> bool:
    return by_interval(fetcher) or is_due()


def may_stop_early(trainer: Any) -> bool:
    """Whether min_epochs and min_steps are reached, so that `should_stop` ends the fit."""
    return bool(trainer.fit_loop._can_stop_early)


def averaged_model(averaging: Any) -> Any:
    """The torch.optim.swa_utils.AveragedModel of a WeightAveraging, or None before its setup."""
    return averaging._average_model


def swap_averaged(averaging: Any, module: Any) -> None:
    """Exchange the weights of the module and their average, as a WeightAveraging does around a validation."""
    averaging._swap_models(module)


def after_swaps(averaging: Any, swapped: Callable[[], None]) -> None:
    """Call `swapped` after each exchange; a WeightAveraging keeps no record of it."""
    averaging._swap_models = partial(_swap_then, averaging._swap_models, swapped)


def _swap_then(swap: Callable[[Any], None], swapped: Callable[[], None], module: Any) -> None:
    swap(module)
    swapped()


# ---- Lightning: signals, and the time in which a run waits for data. Lightning has no hooks around `next(loader)`.

_OF_SIGNALS = "register_signal_handlers", "teardown"
_OF_LOOPS = "_on_before_fetch", "_on_after_fetch"
_OF_TRAINING = ("_broadcast_sigterm_tensor",)  # Lightning's waits for the device at every step


def replace_signals(trainer: Any, *, at_end: Callable[[], None]) -> None:
    """Keep Lightning from handling signals. at_end: called when the fit ends in any way."""
    signals = trainer._signal_connector
    signals.register_signal_handlers, signals.teardown = _nothing, at_end
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _nothing


def call_around_fetches(trainer: Any, *, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Call `before` and `after` around each `next(loader)` of training and validation, outside of Lightning's own."""
    training = trainer.fit_loop.epoch_loop
    for loop in (training, training.val_loop):
        loop._on_before_fetch = partial(_in_turn, before, loop._on_before_fetch)
        loop._on_after_fetch = partial(_in_turn, after, loop._on_after_fetch)


def restore_signals_and_fetches(trainer: Any) -> None:
    training = trainer.fit_loop.epoch_loop
    for owner in (trainer._signal_connector, training, training.val_loop):
        for name in (*_OF_SIGNALS, *_OF_LOOPS, *_OF_TRAINING):
            vars(owner).pop(name, None)


def spare_ended_children() -> None:
    """Keep Lightning's observer from silently killing this process when one of its child processes ends."""
    for thread in threading.enumerate():
        if thread.name == "child-process-observer":
            vars(thread)["_child_processes"] = []


def begun_experiment(logger: Any) -> Any:
    """The run of a WandbLogger, or None; the public `experiment` would begin one."""
    return logger._experiment


def _nothing() -> None:
    pass


def _in_turn(*calls: Callable[[], None]) -> None:
    for call in calls:
        call()

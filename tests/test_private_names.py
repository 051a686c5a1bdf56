"""Private names of torch and Lightning that this project uses exist in the installed versions."""

import inspect
import re
from pkgutil import resolve_name

_LOOPS = "lightning.pytorch.loops"
_EPOCH = f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop"
_WORKERS = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter"
NAMES = {
    f"{_LOOPS}.fit_loop._FitLoop": (
        "_combined_loader_states_to_load _load_combined_loader_states _data_fetcher _should_accumulate"
    ),
    _EPOCH: "_batches_that_stepped _broadcast_sigterm_tensor _on_after_fetch _on_before_fetch _should_check_val_fx",
    f"{_LOOPS}._EvaluationLoop": "_on_after_fetch _on_before_fetch",
    "lightning.pytorch.Trainer": "_checkpoint_connector _logger_connector _signal_connector",
    "lightning.pytorch.callbacks.RichProgressBar": "_console",
    "lightning.pytorch.callbacks.WeightAveraging": "_average_model _swap_models",
    "lightning.pytorch.loggers.WandbLogger": "_experiment",
    "lightning.fabric.strategies.launchers.subprocess_script._ChildProcessObserver": "_child_processes",
    "multiprocessing.util": "_run_finalizers",
    "torch": "_C _dynamo _foreach_add_ _foreach_copy_ _foreach_lerp_",
    "torch.Tensor": "_is_view",
    "torch.UntypedStorage": "_new_shared",
    "torch._C": "_cuda_clearCublasWorkspaces",
    "torch._dynamo.config": "fail_on_recompile_limit_hit patch recompile_limit",
    "torch._inductor.runtime.cache_dir_utils": "default_cache_dir",
    "torch._subclasses.fake_tensor": "FakeTensorMode",
    "torch.cpu": "_is_avx512_bf16_supported",
    "torch.nn.Module": "_call_impl _compiled_call_impl",
    "torch.nn.parallel.DistributedDataParallel": "_inside_ddp_forward",
    "torch.optim.SGD": "_step_supports_amp_scaling",
    "torch.utils._python_dispatch": "TorchDispatchMode",
    "torch.utils._pytree": "tree_leaves tree_map",
    "torch.utils.data.DataLoader": "_iterator",
    "torch.utils.data._utils.signal_handling": "_remove_worker_pids",
    _WORKERS: "_shutdown_workers _worker_pids_set _worker_result_queue",
}
"""Owner -> names."""


def test_the_installed_libraries_have_each_private_name() -> None:
    owned = [(resolve_name(owner), name) for owner, names in NAMES.items() for name in names.split()]
    absent = [
        f"{thing}.{name}"
        for thing, name in owned
        if not hasattr(thing, name) and not re.search(rf"\bself\.{name}\b.* =", inspect.getsource(thing))
    ]
    assert absent == []

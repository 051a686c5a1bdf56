"""The installed versions of torch, Lightning and timm have each private name that the package uses."""

import ast
import inspect
from typing import Any

import lightning.fabric.strategies.launchers.subprocess_script as launcher
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import RichProgressBar, WeightAveraging
from lightning.pytorch.loggers import WandbLogger
from timm.optim import muon
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.data import DataLoader, _utils

from imagenet_opt import private_api


def test_each_private_name_exists() -> None:
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    training = trainer.fit_loop.epoch_loop
    loader = DataLoader([0], num_workers=1, persistent_workers=True)
    workers: Any = iter(loader)
    owners: dict[Any, str] = {
        torch: "_foreach_copy_ _foreach_add_ _foreach_mul_ _foreach_lerp_ _foreach_lerp _C",
        torch._C: "_cuda_clearCublasWorkspaces",
        torch.Tensor: "_is_view _version",
        torch.UntypedStorage: "_new_shared",
        torch.cpu: "_is_avx512_bf16_supported",
        nn.Linear(1, 1): "_compiled_call_impl _call_impl",
        DistributedDataParallel: "_inside_ddp_forward",
        AdamW([nn.Parameter(torch.zeros(1))], fused=True): "_step_supports_amp_scaling",
        loader: "_iterator",
        workers: "_worker_pids_set _worker_result_queue _workers _shutdown_workers",
        _utils.signal_handling: "_remove_worker_pids",
        muon: "_COEFFICIENTS",
        trainer: "_logger_connector _checkpoint_connector _signal_connector",
        type(trainer._logger_connector): "should_update_logs metrics update_train_step_metrics",
        trainer._checkpoint_connector: "dump_checkpoint",
        trainer._signal_connector: "register_signal_handlers teardown",
        trainer.fit_loop: "_should_accumulate _combined_loader_states_to_load _data_fetcher _can_stop_early "
        "_load_combined_loader_states",
        training: "_batches_that_stepped _should_check_val_fx _broadcast_sigterm_tensor "
        "_on_before_fetch _on_after_fetch",
        training.val_loop: "_on_before_fetch _on_after_fetch",
        WeightAveraging(): "_average_model _swap_models",
        launcher._ChildProcessObserver(None, []): "_child_processes",
        WandbLogger(offline=True): "_experiment",
        RichProgressBar: "_get_train_description",  # callbacks/progress_bar.py overrides it
    }
    missing = [
        f"{owner} has no {name}"
        for owner, names in owners.items()
        for name in names.split()
        if not hasattr(owner, name)
    ]
    assert missing == []
    assert private_api.default_code_folder() and private_api.muon_coefficients()
    listed = {name for names in owners.values() for name in names.split()} | {"_inductor"}
    assert _private_names() <= listed  # a new use needs its check here


def _private_names() -> set[str]:
    """Attributes with a leading underscore in private_api.py, also those named by a string; its own functions not."""
    nodes = list(ast.walk(ast.parse(inspect.getsource(private_api))))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {name for name in names if name.startswith("_") and name.isidentifier()}

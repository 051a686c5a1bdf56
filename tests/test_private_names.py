"""Private names of torch, Lightning and Python that this project uses: this file lists each, and the libraries have it.

A private name that this project also defines is not checked.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

REPOSITORY = Path(__file__).parents[1]
FILES = sorted([*(REPOSITORY / "src").rglob("*.py"), *(REPOSITORY / "callbacks").glob("*.py")])
_LOOPS = "lightning.pytorch.loops"
_WORKERS = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter"
OWNERS = {
    "_combined_loader_states_to_load": [f"{_LOOPS}.fit_loop._FitLoop"],
    "_load_combined_loader_states": [f"{_LOOPS}.fit_loop._FitLoop"],
    "_console": ["lightning.pytorch.callbacks.RichProgressBar"],
    "_run_finalizers": ["multiprocessing.util"],
    "_average_model": ["lightning.pytorch.callbacks.WeightAveraging"],
    "_batches_that_stepped": [f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop"],
    "_broadcast_sigterm_tensor": [f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop"],
    "_call_impl": ["torch.nn.Module"],
    "_checkpoint_connector": ["lightning.pytorch.Trainer"],
    "_C": ["torch"],
    "default_cache_dir": ["torch._inductor.runtime.cache_dir_utils"],
    "_cuda_clearCublasWorkspaces": ["torch._C"],
    "_child_processes": ["lightning.fabric.strategies.launchers.subprocess_script._ChildProcessObserver"],
    "_compiled_call_impl": ["torch.nn.Module"],
    "_data_fetcher": [f"{_LOOPS}.fit_loop._FitLoop"],
    "_dynamo": ["torch"],
    "_experiment": ["lightning.pytorch.loggers.WandbLogger"],
    "_foreach_add_": ["torch"],
    "_foreach_copy_": ["torch"],
    "_foreach_lerp_": ["torch"],
    "_inside_ddp_forward": ["torch.nn.parallel.DistributedDataParallel"],
    "_is_avx512_bf16_supported": ["torch.cpu"],
    "_is_view": ["torch.Tensor"],
    "_iterator": ["torch.utils.data.DataLoader"],
    "_logger_connector": ["lightning.pytorch.Trainer"],
    "_new_shared": ["torch.UntypedStorage"],
    "_on_after_fetch": [f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop", f"{_LOOPS}._EvaluationLoop"],
    "_on_before_fetch": [f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop", f"{_LOOPS}._EvaluationLoop"],
    "_remove_worker_pids": ["torch.utils.data._utils.signal_handling"],
    "_should_accumulate": [f"{_LOOPS}.fit_loop._FitLoop"],
    "_should_check_val_fx": [f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop"],
    "_shutdown_workers": [_WORKERS],
    "_signal_connector": ["lightning.pytorch.Trainer"],
    "_step_supports_amp_scaling": ["torch.optim.SGD"],
    "_swap_models": ["lightning.pytorch.callbacks.WeightAveraging"],
    "_worker_pids_set": [_WORKERS],
    "_worker_result_queue": [_WORKERS],
    # Names in private modules:
    "config": ["torch._dynamo"],
    "fail_on_recompile_limit_hit": ["torch._dynamo.config"],
    "patch": ["torch._dynamo.config"],
    "recompile_limit": ["torch._dynamo.config"],
    "signal_handling": ["torch.utils.data._utils"],
    "FakeTensorMode": ["torch._subclasses.fake_tensor"],
    "TorchDispatchMode": ["torch.utils._python_dispatch"],
    "tree_leaves": ["torch.utils._pytree"],
    "tree_map": ["torch.utils._pytree"],
}
OTHERS = {"_asdict", "_exit", "_get_node", "_getframe", "_option_string_actions", "_target_"}
"""Names of the standard library and OmegaConf."""


def used(tree: ast.AST) -> Iterator[str]:
    """Private names of any object, and all names from private modules of torch and Lightning."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if is_private(node.attr) or ast.unparse(node.value).startswith("torch._"):
                yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("torch", "lightning")):
            parts = (node.module or "").split(".")
            yield from (alias.name for alias in node.names if any(map(is_private, [*parts, alias.name])))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("getattr", "hasattr", "setattr") and isinstance(node.args[1], ast.Constant):
                yield from filter(is_private, [str(node.args[1].value)])
            if name == "torch._dynamo.config.patch":
                yield from (keyword.arg for keyword in node.keywords if keyword.arg is not None)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(tree: ast.AST) -> Iterator[str]:
    """Names that a file defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def test_each_private_name_is_listed_and_each_listed_is_used() -> None:
    trees = [ast.parse(file.read_text()) for file in FILES]
    ours = {name for tree in trees for name in defined(tree)} - OWNERS.keys()
    theirs = {name for tree in trees for name in used(tree)} - ours - OTHERS
    assert theirs == OWNERS.keys()


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for name, owners in OWNERS.items() for owner in owners])
def test_the_installed_libraries_have_each_private_name(owner: str, name: str) -> None:
    thing = resolve_name(owner)
    assert hasattr(thing, name) or re.search(rf"\bself\.{name}\b.* =", inspect.getsource(thing))

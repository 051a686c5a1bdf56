"""Configurations of temporary runs that are only measured."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_opt.run.checkpoint.writer import wait_for_writers

_WITHIN = "IMAGENET_OPT_RUNS_WITHIN"
_WRITING_SECONDS = 60
"""Longest wait for a checkpoint that is still being written when a run is stopped."""


def only(config: DictConfig, *, callbacks: tuple[str, ...]) -> DictConfig:
    """The configuration without loggers and with these callbacks only."""
    config = config.copy()
    with open_dict(config):
        config.logger = {}
        config.callbacks = {name: config.callbacks[name] for name in callbacks if name in config.callbacks}
    return config


@contextlib.contextmanager
def removed_afterwards() -> Iterator[dict[str, str]]:
    """Environment variables for a process; its run folders are removed on exit, as a killed process leaves them."""
    with tempfile.TemporaryDirectory(prefix=".doctor_", dir=_runs(), ignore_cleanup_errors=True) as folder:
        yield {_WITHIN: str(Path(folder).absolute())}


def _runs() -> str:
    """A folder on the same disk as the run folders."""
    return os.environ.get(_WITHIN) or ("runs" if Path("runs").is_dir() else ".")


@contextlib.contextmanager
def run_folder(
    config: DictConfig, *, within: Path | None = None, trainer: Mapping[str, Any] | None = None
) -> Iterator[DictConfig]:
    """The configuration with a temporary run folder, on the disk where runs are written or in `within`. trainer: keys
    that replace those of a run in one process that ends after an epoch."""
    runs = within or _runs()
    with tempfile.TemporaryDirectory(prefix=".doctor_", dir=runs, ignore_cleanup_errors=True) as folder:
        changed: Any = config.copy()
        with open_dict(changed):
            changed.update({"run_folder": folder, "resume_from": None})
            changed.trainer.update({"devices": 1, "num_nodes": 1, "strategy": "auto", "limit_train_batches": 1.0})
            changed.trainer.update({"limit_val_batches": 0, "max_epochs": 1, "max_steps": -1} | dict(trainer or {}))
            for name in ("progress_bar", "preemption"):
                changed.callbacks.pop(name, None)
            if "mirror" in changed.callbacks.get("checkpoint", {}):
                changed.callbacks.checkpoint.mirror = None
        OmegaConf.resolve(changed.callbacks)
        try:
            yield changed
        finally:
            wait_for_writers(_WRITING_SECONDS)

"""Checkpoint files: written whole or not at all, found, opened safely, and compared with a network."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from imagenet_opt.errors import CheckpointError, CheckpointMismatch, CheckpointNotFound

log = logging.getLogger(__name__)

LAST = "last.ckpt"
BEST = "best.ckpt"
FOLDER = "checkpoints"


def step_file(run_folder: Path, global_step: int) -> Path:
    return run_folder / FOLDER / f"step_{global_step:08d}.ckpt"


def step_files(run_folder: Path) -> list[Path]:
    """Checkpoints of single steps, in the order in which they were written: a run may go back to an early one."""
    return sorted((run_folder / FOLDER).glob("step_*.ckpt"), key=lambda file: (file.stat().st_mtime_ns, file.name))


def link(source: Path, name: Path) -> None:
    """Let `name` be the same file as `source`, in one step; a copy where the file system has no hard links."""
    fresh = name.with_name(f".{name.name}.new")
    fresh.unlink(missing_ok=True)
    try:
        os.link(source, fresh)
    except OSError:
        shutil.copyfile(source, fresh)
    os.replace(fresh, name)


def read(path: Path, key: str = "resume_from") -> dict[str, Any]:
    """Open a checkpoint on the CPU without running any code from it. key: the option that named it, for messages.

    Raises CheckpointNotFound; CheckpointError for a file that is damaged or not a checkpoint of this project.
    """
    if not path.is_file():
        raise CheckpointNotFound(f"no checkpoint at {path} ({key}); expected a .ckpt file")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be opened as a checkpoint ({type(error).__name__}); "
            f"it is damaged or of another program: choose an earlier one with {key}=PATH"
        ) from error
    if not isinstance(checkpoint, dict) or "network" not in checkpoint:
        raise CheckpointError(f"{path} holds no `network`; expected a checkpoint that train.py wrote ({key})")
    return checkpoint


def find(resume_from: str | None, run_folder: Path) -> Path | None:
    """The checkpoint that `resume_from` means: "auto" is the newest good one of the run folder, None is none.

    Raises CheckpointNotFound, CheckpointError for a path that cannot be used.
    """
    if resume_from is None:
        return None
    if resume_from != "auto":
        path = Path(resume_from).expanduser().resolve()
        path = path / LAST if path.is_dir() else path
        read(path)
        return path
    for path in (run_folder / LAST, *reversed(step_files(run_folder))):
        if path.exists():
            try:
                read(path)
            except CheckpointError as error:
                log.warning(f"passed over: {error}")
                continue
            return path
    return None


def check_network(checkpoint: dict[str, Any], net: nn.Module, path: Path) -> None:
    """Raises CheckpointMismatch, with the tensors that differ, unless the checkpoint's network is like `net`."""
    saved = {name: tuple(tensor.shape) for name, tensor in checkpoint["network"].items()}
    wanted = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    if saved == wanted:
        return
    resized = [f"{n} {saved[n]} here {wanted[n]}" for n in saved if n in wanted and saved[n] != wanted[n]]
    absent = sorted(set(wanted) - set(saved))
    extra = sorted(set(saved) - set(wanted))
    parts = [("other shape", resized), ("not in the file", absent), ("only in the file", extra)]
    found = "; ".join(f"{what}: {', '.join(names[:3])} ({len(names)} in all)" for what, names in parts if names)
    about = checkpoint.get("network_config", {})
    raise CheckpointMismatch(
        f"{path} is of another network ({about.get('name')}, {about.get('num_classes')} classes): {found}. "
        "Use the model.* keys and data it was trained with, or start anew with resume_from=null and another run folder"
    )

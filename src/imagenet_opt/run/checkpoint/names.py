"""The names of a run's checkpoints. Imports no torch, as a command that only looks for files needs none."""

import re
from pathlib import Path

LAST, BEST, FOLDER = "last.ckpt", "best.ckpt", "checkpoints"
COMPILED_CODE = "compiled_code.bin"
"""What torch.compile made for a run, beside its checkpoints; the callback `acceleration` writes and reads it."""
_STEP_FILE = re.compile(rf"({FOLDER}/)?step_([0-9]{{8,18}})\.ckpt")


def step_file(run_folder: Path, global_step: int) -> Path:
    return run_folder / FOLDER / f"step_{global_step:08d}.ckpt"


def step_of(name: str) -> int:
    """The step in the name of a checkpoint, below the run folder or below its FOLDER; -1 for other names."""
    found = _STEP_FILE.fullmatch(name)
    return -1 if found is None else int(found[2])


def step_files(run_folder: Path) -> list[Path]:
    """Checkpoints under the names of `step_file`, ordered by step. Other files in the folder are the user's own."""
    named = [file for file in (run_folder / FOLDER).glob("step_*.ckpt") if step_of(file.name) >= 0]
    return sorted(named, key=lambda file: step_of(file.name))


def best_of(folder: Path) -> Path:
    """The checkpoint that stands for a run: its best.ckpt, else its last.ckpt."""
    return folder / (BEST if (folder / BEST).exists() else LAST)

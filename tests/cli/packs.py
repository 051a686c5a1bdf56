"""Small sources, and the pack command as a process."""

import subprocess
import sys
from pathlib import Path

from tests.pack.packs import jpeg, tree


def images(root: Path, *, per_class: int) -> Path:
    """Two classes of images of 64 x 64 pixels, in train/ and val/."""
    names = [f"{split}/{name}/{i:03d}.JPEG" for split in ("train", "val") for name in "ab" for i in range(per_class)]
    return tree(root, {name: jpeg(64, 64, seed=seed) for seed, name in enumerate(names)})


def start(*arguments: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a terminal starts it."""
    command = [sys.executable, "-m", "imagenet_opt.cli.main", "pack", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def words(data: Path, out: Path) -> list[str]:
    return [f"data.root={data}", f"out={out}", "shard_mb=0.02", "workers=1"]

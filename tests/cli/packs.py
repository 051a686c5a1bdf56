"""Small sources, and the pack command as a process."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image


def jpeg(seed: int, side: int = 64) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def images(root: Path, *, per_class: int, side: int = 64) -> Path:
    for number, split in enumerate(("train", "val")):
        for label, name in enumerate("ab"):
            (root / split / name).mkdir(parents=True)
            for i in range(per_class):
                seed = (2 * number + label) * per_class + i
                (root / split / name / f"{i:03d}.JPEG").write_bytes(jpeg(seed, side))
    return root


def start(*arguments: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a terminal starts it."""
    command = [sys.executable, "-m", "imagenet_opt.cli.main", "pack", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def words(pipe: Path, out: Path) -> list[str]:
    return [f"data.root={pipe.parents[2]}", f"out={out}", "shard_mb=0.02", "workers=1"]

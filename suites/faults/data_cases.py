"""The cached index and packed shards are damaged between two runs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from suites.faults.checkpoint_cases import flip_bit
from suites.faults.registry import CASES, Case
from suites.faults.runs import REPOSITORY, Trial

PAGE = 4096


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def flip(path: Path) -> None:
    flip_bit(path, path.stat().st_size - 2)


def zero_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // PAGE * PAGE)
        file.write(bytes(PAGE))


def swap(path: Path) -> None:
    """With the next shard."""
    other = path.with_name("shard-00001.tar")
    aside = path.rename(path.with_suffix(".aside"))
    other.rename(path)
    aside.rename(other)


def _index_damaged(trial: Trial, harm: Callable[[Path], None]) -> str:
    trial.epochs = 2
    trial.own_images()
    trial.overrides = [f"data.cache_dir={trial.folder / 'own_cache'}"]
    trial.start().ends(0)
    shutil.rmtree(trial.run_folder)
    for column in (trial.folder / "own_cache").rglob("*.npy"):
        harm(column)
    return _like_clean_or_told(trial)


def _shard_damaged(trial: Trial, name: str, harm: Callable[[Path], None]) -> str:
    trial.epochs = 2
    packed = trial.folder / "packed"
    pack = ["-m", "imagenet_opt.cli.main", "pack", f"data.root={trial.lab.images}", f"out={packed}", "shard_mb=0.05"]
    subprocess.run([sys.executable, *pack], cwd=REPOSITORY, env=trial.lab.environment, check=True, capture_output=True)
    trial.overrides = [f"data.root={packed}", "data.max_bad_fraction=0.5"]
    trial.lab.clean(trial.epochs, *trial.overrides)
    harm(packed / "train" / name)
    return _like_clean_or_told(trial)


def _like_clean_or_told(trial: Trial) -> str:
    run = trial.start()
    if run.wait() != 0:
        run.ends(2, r"^\w+: ")
        return f"explained: {run.errors[-1].split(':')[0]}"
    if skipped := sum("skipped" in line for line in run.output.splitlines()):
        return f"{skipped} samples skipped, each with a warning"
    trial.is_like_clean()
    return "noticed or harmless: bit-identical"


for name, harm in (("cut", cut), ("garbage", garbage), ("flipped", flip)):
    CASES[f"cache_{name}"] = Case(f"the cached index: {name}", partial(_index_damaged, harm=harm))
for file, name, harm in (
    ("shard-00000.tar", "cut", cut),
    ("shard-00000.tar", "page of zeros", zero_page),
    ("shard-00000.tar", "swapped", swap),
    ("shard-00000.tar", "vanished", Path.unlink),
    ("index.json", "cut", cut),
    ("offsets.npy", "garbage", garbage),
    ("labels.npy", "flipped", flip),
):
    CASES[f"packed_{Path(file).stem.split('-')[0]}_{name.split()[-1]}"] = Case(
        f"packed, {file}: {name}", partial(_shard_damaged, name=file, harm=harm)
    )

"""Makes a machine ready for the jobs, and prints facts about it as JSON: `python suites/gpu/prepare.py WORK --help`.

WORK gets images/ (links), and cifar10/ and imagenette/ if there is such data. A bare machine without internet can be
given .bench/ in the root of the repository: images/ (class folders), cifar10.tar.xz, nette1.tar to nette3.tar (a third
of Imagenette each, perhaps in several calls), inductor.tgz (WORK/compiled of another machine, see --code of run.py).
"""

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from imagenet_opt.data.demo import demo_folder
from imagenet_opt.data.index.layout import IMAGE_SUFFIXES
from imagenet_opt.machine import usable_cpus, versions

BENCH = Path(__file__).resolve().parents[2] / ".bench"
NUM_FILES, NUM_LINKS = 150, 51_200
"""So many files stay in memory; so many images are an epoch of 133 batches of 384."""
NEEDED = "torch torchvision lightning timm hydra omegaconf pydantic pynvml nvidia.nvimgcodec safetensors"
QUERY = "name,compute_cap,driver_version,memory.total,power.limit"


def is_missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:  # the package around it
        return True


def machine() -> dict[str, Any]:
    """capability: compute capability of the first GPU, which decides what code suits it; "none" without a GPU."""
    told = []
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader", "--id=0"]
        told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip().split(", ")
    names = ("card", "capability", "driver", "memory", "power_limit")
    card = dict(zip(names, told, strict=True)) if len(told) == len(names) else {"card": "no GPU", "capability": "none"}
    return card | {"cpus": usable_cpus(), "versions": versions()}


def few(images: Path) -> list[Path]:
    """About NUM_FILES images, equally many of each class folder. Reads few folders of a large data set."""
    folders = sorted(folder for folder in images.iterdir() if folder.is_dir())
    num_each = -(-NUM_FILES // max(1, len(folders)))
    found: list[Path] = []
    for folder in folders[:: max(1, len(folders) // NUM_FILES)]:
        found += islice((file for file in folder.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES), num_each)
    if not found:
        sys.exit(f"no images in the class folders of {images}")
    return found


def link(files: list[Path], target: Path) -> None:
    """NUM_LINKS links or a few more in class folders, equally many to each file; there whole or not at all."""
    fresh = target.with_name(f"new_{target.name}")
    for folder in (fresh, target):
        shutil.rmtree(folder, ignore_errors=True)
    for file in files:
        file.read_bytes()  # so that it is in memory
        (folder := fresh / file.parent.name).mkdir(parents=True, exist_ok=True)
        for i in range(-(-NUM_LINKS // len(files))):
            (folder / f"{i:05d}_{file.name}").symlink_to(file.resolve())
    fresh.rename(target)


def unpack(target: Path, *names: str, within: str = ".") -> None:
    """Unpack archives of BENCH into one folder, which appears once all of them, perhaps of several calls, are in it."""
    parts = target.with_name(f"parts_of_{target.name}")
    if target.exists():
        return
    for name in names:
        if (BENCH / name).exists() and not (parts / name).exists():
            with tarfile.open(BENCH / name) as archive:
                archive.extractall(parts, filter="data")
            (parts / name).touch()
    if all((parts / name).exists() for name in names):
        (parts / within).rename(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, metavar="WORK")
    for name in ("images", "cifar10", "imagenette"):
        parser.add_argument(f"--{name}", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if missing := [module for module in NEEDED.split() if is_missing(module)]:
        sys.exit(f"these modules are missing: {', '.join(missing)}; pip install -e '.[dev]' brings them")
    for name in ("cifar10", "imagenette"):
        if (folder := vars(given)[name]) and not (given.work / name).exists():
            (given.work / name).symlink_to(folder)
    unpack(given.work / "cifar10", "cifar10.tar.xz", within="cifar10")
    unpack(given.work / "imagenette", "nette1.tar", "nette2.tar", "nette3.tar")
    unpack(given.work / "compiled", "inductor.tgz")
    images = given.images or (BENCH / "images" if (BENCH / "images").is_dir() else None)
    source = images or demo_folder(given.work, NUM_FILES, 10) / "train"
    told = given.work / "images.json"
    if not told.exists() or json.loads(told.read_text())["source"] != str(source):
        link(few(source), given.work / "images")
        told.write_text(json.dumps({"source": str(source), "is_drawn": images is None}))
    if (facts := machine())["capability"] == "none":
        print("no GPU: the jobs run with tiny sizes, which shows only mistakes of the scripts", file=sys.stderr)
    print(json.dumps(facts | {"is_drawn": json.loads(told.read_text())["is_drawn"]}))


if __name__ == "__main__":
    main()

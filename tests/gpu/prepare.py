"""Makes a machine ready for the jobs, and prints facts about it as JSON: `python tests/gpu/prepare.py WORK --help`.

WORK gets images/ (links), cifar10/ and imagenette/ if there is such data, and compiled/. A bare machine, without data
and internet, can be given .bench/ in the root of the repository: images/ (class folders), cifar10.tar.xz, nette1.tar to
nette3.tar (a third of Imagenette each, perhaps in several calls), inductor.tgz (code that torch has compiled elsewhere).
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

from imagenet_opt.data.demo import ensure_demo
from imagenet_opt.data.index.split_folder import IMAGE_SUFFIXES
from imagenet_opt.machine import usable_cpus, versions

NUM_FILES, NUM_LINKS = 150, 51_200
"""So many files stay in memory; so many images are an epoch of 133 batches of 384."""
NEEDED = "torch torchvision lightning timm hydra omegaconf pydantic pynvml nvidia.nvimgcodec safetensors"
QUERY = "name,compute_cap,driver_version,memory.total,power.limit"


def missing() -> list[str]:
    found = []
    for name in NEEDED.split():
        try:
            found += [] if find_spec(name) else [name]
        except ModuleNotFoundError:  # of the package around it
            found.append(name)
    return found


def machine() -> dict[str, Any]:
    """capability: compute capability of the first GPU, which says what code and tuning apply; "none" without a GPU."""
    told = []
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader", "--id=0"]
        told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip().split(", ")
    names = ("card", "capability", "driver", "memory", "power_limit")
    card = dict(zip(names, told, strict=True)) if len(told) == len(names) else {"card": "no GPU", "capability": "none"}
    return card | {"cpus": usable_cpus(), "versions": versions()}


def few(images: Path) -> list[Path]:
    """About NUM_FILES images, equally many of each class folder. Reads few folders of a large data set completely."""
    folders = sorted(folder for folder in images.iterdir() if folder.is_dir())
    num_each = -(-NUM_FILES // max(1, len(folders)))
    found: list[Path] = []
    for folder in folders[:: max(1, len(folders) // NUM_FILES)]:
        files = (file for file in folder.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
        found += islice(files, num_each)
    if not found:
        sys.exit(f"no images in the class folders of {images}")
    return sorted(found)


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


def unpack(archives: list[Path], target: Path, *, within: str = ".") -> None:
    """Unpack archives into one folder, which appears once all of them, perhaps of several calls, are in it."""
    parts = target.with_name(f"parts_of_{target.name}")
    for archive in archives:
        mark = parts / archive.name
        if archive.exists() and not target.exists() and not mark.exists():
            with tarfile.open(archive) as content:
                content.extractall(parts, filter="data")
            mark.touch()
    if not target.exists() and all((parts / archive.name).exists() for archive in archives):
        (parts / within).rename(target)


def prepare(work: Path, bench: Path, given: argparse.Namespace) -> None:
    for name in ("cifar10", "imagenette"):
        if (folder := getattr(given, name)) and not (work / name).exists():
            (work / name).symlink_to(folder)
    unpack([bench / "cifar10.tar.xz"], work / "cifar10", within="cifar10")
    unpack([bench / f"nette{i}.tar" for i in (1, 2, 3)], work / "imagenette")
    unpack([bench / "inductor.tgz"], work / "compiled")
    images = given.images or (bench / "images" if (bench / "images").is_dir() else None)
    is_drawn = images is None
    images = images or ensure_demo(work / "drawn", num_train=NUM_FILES, num_val=10) / "train"
    told = work / "images.json"
    if not told.exists() or json.loads(told.read_text())["source"] != str(images):
        link(few(images), work / "images")
        told.write_text(json.dumps({"source": str(images), "is_drawn": is_drawn}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, metavar="WORK")
    for name in ("images", "cifar10", "imagenette"):
        parser.add_argument(f"--{name}", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if found := missing():
        sys.exit(f"these modules are missing: {', '.join(found)}; pip install -e '.[dev]' brings them")
    prepare(given.work, Path(__file__).resolve().parents[2] / ".bench", given)
    if (facts := machine())["capability"] == "none":
        print("no GPU: the jobs run with tiny sizes, which shows only mistakes of the scripts", file=sys.stderr)
    print(json.dumps(facts | {"images": json.loads((given.work / "images.json").read_text())}))


if __name__ == "__main__":
    main()

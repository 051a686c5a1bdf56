"""An epoch that is long enough, out of a few real files: `python tests/gpu/repeated.py OUT NUM [IMAGES]`.

OUT/cache/images gets NUM links or a few more, equally many to each file of IMAGES (class folders; without it images are
drawn), and OUT/images.json says of how many files. Each file is read once, so all of them are in memory.
"""

import json
import shutil
import sys
from pathlib import Path

from imagenet_opt.data.demo import ensure_demo
from imagenet_opt.data.index.split_folder import IMAGE_SUFFIXES

NUM_DRAWN = 200


def repeat(images: Path, target: Path, num: int) -> tuple[int, int]:
    """How many files there are, and links to them, which are there whole or not at all."""
    files = sorted(file for file in images.glob("*/*") if file.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        sys.exit(f"no images in the class folders of {images}")
    num_each = -(-num // len(files))
    fresh = target.with_name(f"new_{target.name}")
    shutil.rmtree(fresh, ignore_errors=True)  # of one that was killed
    for file in files:
        file.read_bytes()
        folder = fresh / file.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(num_each):
            (folder / f"{i:05d}_{file.name}").symlink_to(file.resolve())
    fresh.rename(target)
    return len(files), num_each * len(files)


def main(out: Path, num: int, images: Path | None) -> None:
    target = out / "cache" / "images"
    if target.exists():  # a resumed run
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    is_drawn = images is None
    if images is None:
        images = ensure_demo(target.parent / "drawn", num_train=NUM_DRAWN, num_val=10) / "train"
    num_files, num_links = repeat(images, target, num)
    (out / "images.json").write_text(json.dumps({"num_files": num_files, "num_links": num_links, "is_drawn": is_drawn}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)

"""Split a folder of classes: every tenth image of each class is linked into val, the others into train.

python examples/split_folder.py /data/unsplit /data/mine
"""

import sys
from pathlib import Path

WITHOUT_SPLIT = "to look at speed only: imagenet-opt train data.train_folder=. data.val_folder=."

if len(sys.argv) != 3:
    sys.exit("usage: python examples/split_folder.py FOLDER NEW_FOLDER")
source, target = map(Path, sys.argv[1:])
classes = sorted(folder for folder in source.glob("*") if folder.is_dir())
if not classes:
    sys.exit(f"{source} has no class folders: expected {source}/<class>/1.jpg")
if {"train", "val"} & {folder.name for folder in classes}:
    sys.exit(f"{source} is split already: train with data.root={source}")
if target.exists():
    sys.exit(f"{target} exists: name a new folder, or remove this one")
if not any(len(list(folder.iterdir())) > 1 for folder in classes):
    sys.exit(f"no class of {source} has a second image, for val; {WITHOUT_SPLIT} data.root={source}")
number = {"train": 0, "val": 0}
for folder in classes:
    for position, file in enumerate(sorted(folder.iterdir())):
        split = "val" if position % 10 == 1 else "train"  # a class of one image is trained
        link = target / split / folder.name / file.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())
        number[split] += 1
print(
    f"linked {number['train']} files of {len(classes)} classes into {target}/train, {number['val']} into {target}/val"
)
print(f"next: imagenet-opt train data.root={target}")

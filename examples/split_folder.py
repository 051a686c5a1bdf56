"""Split a folder of classes: every tenth image of each class is linked into val, the others into train.

python examples/split_folder.py /data/unsplit /data/mine
"""

import sys
from pathlib import Path

source, target = map(Path, sys.argv[1:])
for folder in filter(Path.is_dir, source.iterdir()):
    for position, file in enumerate(sorted(folder.iterdir())):
        link = target / ("train" if position % 10 else "val") / folder.name / file.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())

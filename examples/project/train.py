"""Train with the settings and callbacks of this folder: python train.py experiment=mine"""

import sys
from pathlib import Path

from imagenet_opt.cli.train import main

if __name__ == "__main__":
    main(sys.argv[1:], project=Path(__file__).parent, allow_targets=["my_callbacks"])

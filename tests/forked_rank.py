"""Runs the script in argv[1] in a process that torchrun forked after Lightning was imported."""

import os
import runpy
import sys

from lightning.fabric.utilities.rank_zero import rank_zero_only

rank_zero_only.rank = int(os.environ["RANK"])  # Lightning reads it at import
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")

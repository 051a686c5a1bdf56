#!/usr/bin/env bash
# All that needs a GPU, in one command from a bare checkout: tests/gpu/run.sh OUT
# Writes OUT/gpu.json, OUT/gpu.md and what the commands printed. No installation: the packages must be importable.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: tests/gpu/run.sh OUT}
mkdir -p "$out"
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" WANDB_MODE=offline XDG_CACHE_HOME="$out/cache"

python3 -m pytest tests/gpu -o addopts="--import-mode=importlib -q" --junitxml="$out/tests.xml" | tee "$out/tests.log"
for experiment in baseline aggressive; do
    python3 train.py +experiment=$experiment data=demo data.image_size=224 data.batch_size=128 \
        trainer.max_steps=200 logger=csv hydra.run.dir="$out/$experiment" 2>&1 | tee "$out/$experiment.log"
done
python3 tests/gpu/report.py "$out"
rm -rf "$out/cache" "$out"/*/checkpoints "$out"/*/*.ckpt

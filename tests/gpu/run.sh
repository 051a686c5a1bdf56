#!/usr/bin/env bash
# All that needs a GPU, in one command from a bare checkout: tests/gpu/run.sh OUT [IMAGES [CIFAR10]]
# IMAGES: a folder of class folders with JPEGs, 128 or more; without it, images are drawn. CIFAR10: train/ and val/,
# each with class folders. Writes OUT/gpu.json, OUT/gpu.md, the ladder and what the commands printed. No installation:
# the packages must be importable. With IMAGES meant to take below 8 minutes; CIFAR-10 comes on top. OUT must be empty.
# All parts run; the status is 1 where one has failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: tests/gpu/run.sh OUT [IMAGES [CIFAR10]]}
mkdir -p "$out"
out=$(realpath "$out")
[ -z "$(ls -A "$out")" ] || { echo "$out is not empty" >&2; exit 2; }
failed=()
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" WANDB_MODE=offline XDG_CACHE_HOME="$out/cache"
data=(data=demo data.image_size=224)
[ $# -ge 2 ] && data=("data.root=$2" data.train_folder=. data.val_folder=.)

python3 -m pytest tests/gpu -o addopts="--import-mode=importlib -q" --junitxml="$out/tests.xml" |
    tee "$out/tests.log" || failed+=(tests)
python3 -m imagenet_opt.cli.main study study=tests/gpu/ladder.yaml "${data[@]}" data.batch_size=128 \
    --repeats 2 --seconds 3 --parity 0 --folder "$out/ladder" 2>&1 | tee "$out/ladder.log" || failed+=(ladder)
python3 -m imagenet_opt.cli.main study study=anatomy "${data[@]}" data.batch_size=128 \
    --folder "$out/anatomy" 2>&1 | tee "$out/anatomy.log" || failed+=(anatomy)
for experiment in baseline aggressive; do
    python3 train.py +experiment=$experiment "${data[@]}" data.batch_size=128 trainer.limit_val_batches=2 \
        trainer.max_steps=100 logger=csv hydra.run.dir="$out/$experiment" 2>&1 | tee "$out/$experiment.log" ||
        failed+=("$experiment")
done
if [ $# -ge 3 ]; then
    python3 train.py +experiment=cifar10 data.root="$3" logger=csv hydra.run.dir="$out/cifar10" 2>&1 |
        tee "$out/cifar10.log" || failed+=(cifar10)
fi
python3 tests/gpu/report.py "$out" || failed+=(report)
rm -rf "$out/cache" "$out"/*/checkpoints "$out"/*/*.ckpt "$out"/*/compiled
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }

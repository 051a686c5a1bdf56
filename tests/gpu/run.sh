#!/usr/bin/env bash
# All that needs a GPU, from a bare checkout; nothing is installed, the packages must be importable.
#
#   tests/gpu/run.sh OUT [IMAGES]           a short ladder, a whole run, the anatomy and the tests, in 8 minutes; what
#                                           there is no time for is cut short, and said. OUT must be empty.
#   tests/gpu/run.sh --ladder OUT [IMAGES]  the whole ladder with its check of losses, 9.5 minutes of it each time: the
#                                           same command goes on, three or four times, and on the
#                                           same hostname: turns of another one are measured anew
#   tests/gpu/run.sh --cifar10 OUT CIFAR10  the recipe for CIFAR-10, 9.5 minutes of it each time
#
# IMAGES: class folders with JPEGs; 150 are enough, as each is used again and again. Without it, images are drawn.
# CIFAR10: train/ and val/, each with class folders. All of it adds to OUT/gpu.json and OUT/gpu.md, which have the
# numbers beside their aims, and OUT has what the commands printed. All parts run; the status is 1 where one has failed.
set -uo pipefail
usage="usage: tests/gpu/run.sh [--ladder] OUT [IMAGES], or tests/gpu/run.sh --cifar10 OUT CIFAR10"
mode=all limit=470 failed=0 steps=400 batch=128
case ${1:-} in --ladder | --cifar10) mode=${1#--} limit=570 && shift ;; esac
[ -n "${1:-}" ] && { [ $mode != cifar10 ] || [ -d "${2:-}" ]; } || { echo "$usage" >&2; exit 2; }
mkdir -p "$1" && out=$(realpath "$1") && images=${2:+$(realpath "$2")} || exit 2
[ $mode != all ] || [ -z "$(ls -A "$out")" ] || { echo "$out is not empty" >&2; exit 2; }
cd "$(dirname "$0")/../.." || exit 2
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" WANDB_MODE=offline XDG_CACHE_HOME="$out/cache"
data=("data.root=$out/cache/images" data.train_folder=. data.val_folder=. data.batch_size=$batch)
study=(python3 -m imagenet_opt.cli.main study)

part() { # NAME COMMAND...: within the time that is left; parts.txt has its status and seconds
    local name=$1 began=$SECONDS left=$((limit - SECONDS)) status=124
    shift
    if [ $left -gt 0 ]; then
        timeout --signal=INT --kill-after=10 $left "$@" > >(tee "$out/$name.log") 2>&1
        status=$?
    fi
    [ "$status" -eq 0 ] || failed=1
    echo "$name $status $((SECONDS - began))" >>"$out/parts.txt"
}

if [ $mode = cifar10 ]; then
    part cifar10 python3 train.py +experiment=cifar10 data.root="$images" logger=csv hydra.run.dir="$out/cifar10"
    [ $failed -ne 0 ] || rm -rf "${out:?}"/cifar10/checkpoints "$out"/cifar10/*.ckpt
else
    part images python3 tests/gpu/repeated.py "$out" $((steps * batch)) ${images:+"$images"}
fi
if [ $mode = ladder ]; then
    part ladder "${study[@]}" study=ladder "${data[@]}" --repeats 3 --seconds 3 --parity 100 --folder "$out/ladder"
    [ $failed -ne 0 ] || rm -rf "${out:?}/cache" "$out/ladder/compiled"
elif [ $mode = all ]; then
    part short_ladder "${study[@]}" study=tests/gpu/ladder.yaml "${data[@]}" --repeats 2 --seconds 3 --parity 0 \
        --folder "$out/short_ladder"
    part run env TORCHINDUCTOR_CACHE_DIR="$out/short_ladder/compiled" \
        python3 train.py +experiment=aggressive "${data[@]}" data.num_workers=auto data.prefetch_factor=auto \
        callbacks.acceleration.compile=true callbacks.acceleration.compile_mode=default \
        callbacks.acceleration.cuda_graph=true trainer.max_steps=$steps trainer.limit_val_batches=0 logger=csv \
        hydra.run.dir="$out/run"
    part anatomy "${study[@]}" study=anatomy "${data[@]}" --folder "$out/anatomy"
    # the doctor's take the longest: last, so that they alone are cut short
    part tests python3 -m pytest tests/gpu/test_[!d]*.py tests/gpu/test_d*.py \
        -o addopts="--import-mode=importlib -q" --junitxml="$out/tests.xml"
    rm -rf "${out:?}/cache" "$out"/*/checkpoints "$out"/*/*.ckpt "$out"/*/compiled
fi
python3 tests/gpu/report.py "$out" || failed=1
exit $failed

#!/usr/bin/env bash
# All that needs a GPU, from a bare checkout; nothing is installed, the packages must be importable.
#
#   tests/gpu/run.sh [--only PARTS] OUT [IMAGES]
#   tests/gpu/run.sh --cifar10 OUT CIFAR10 [OVERRIDE...]
#
# Parts, in this order; --only takes some of them, with commas between:
#   first         what is most doubtful: decoding beside CUDA, the resize kernel, graphs' memory, speed of a step
#   quick_tests   the tests in this folder that are not slow
#   small_card    short runs at batch 384 and 512 on 22 GiB of the card
#   run           a whole run of train.py
#   anatomy       where the milliseconds of a step go
#   short_ladder  a ladder of three rows
#   slow_tests    the other tests in this folder
#   ladder        a ladder of ten rows with its check of losses: only with --only ladder
# --cifar10 trains the recipe for CIFAR-10, with overrides of train.py.
#
# A call lasts 9 minutes at most. Run the same command again: it resumes. Parts that ended well are not run again, a
# ladder keeps each turn that it has measured, and training resumes from its last epoch. A ladder's turns are those of
# one hostname: on another machine they are measured anew. By reckoning all parts take three or four calls, the ladder
# two or three. Where each call meets a new machine with an empty OUT, these three calls
# each fill their 9 minutes (slow_tests is not among them):
#   --only first,quick_tests     --only small_card     --only run,anatomy,short_ladder
# Copy what they leave into one folder, and `python tests/gpu/report.py FOLDER` makes one page of them.
#
# IMAGES: class folders with JPEGs; 150 are enough, as each is used again and again. Without it, images are drawn.
# CIFAR10: train/ and val/, each with class folders of JPEGs. (From an archive: mkdir DIR && tar xf ARCHIVE -C DIR.)
# Packages: those of pyproject.toml but for wandb, and pytest; needed.py says which are missing. Of antlr4 4.9.3, which
# hydra-core needs, there is no wheel to be downloaded: pip wheel antlr4-python3-runtime==4.9.3 makes one.
#
# OUT is empty at first. gpu.json and gpu.md there have the numbers beside their aims; OUT has what the commands printed
# as well. Status 1: a part has failed or was cut short, and gpu.md says which. Status 2: nothing could be run.
set -uo pipefail
usage="usage: tests/gpu/run.sh [--only PARTS] OUT [IMAGES], or tests/gpu/run.sh --cifar10 OUT CIFAR10 [OVERRIDE...]"
known=,first,quick_tests,small_card,run,anatomy,short_ladder,slow_tests,ladder,
only=first,quick_tests,small_card,run,anatomy,short_ladder,slow_tests
limit=530 failed=0 steps=400 batch=128
case ${1:-} in
--only) [ $# -ge 2 ] || set -- "$1" "-"; only=$2; shift 2 ;;
--cifar10) only=cifar10; shift ;;
-*) echo "$usage" >&2 && exit 2 ;;
esac
[ "$only" = cifar10 ] || for name in ${only//,/ }; do
    case $known in *,$name,*) ;; *) echo "--only: no part $name; there are${known//,/ }" >&2 && exit 2 ;; esac
done
[ -n "${1:-}" ] && { [ "$only" = cifar10 ] || [ $# -le 2 ]; } || { echo "$usage" >&2; exit 2; }
if [ "$only" = cifar10 ] || [ -n "${2:-}" ]; then
    [ -d "${2:-}" ] || { printf '%s\n' "${2:-CIFAR10} is no folder" "$usage" >&2; exit 2; }
fi
mkdir -p "$1" && out=$(realpath "$1") && images=${2:+$(realpath "$2")} || exit 2
[ -e "$out/parts.txt" ] || [ -z "$(ls -A "$out")" ] || { echo "$out is neither empty nor of this script" >&2; exit 2; }
cd "$(dirname "$0")/../.." || exit 2
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" XDG_CACHE_HOME="$out/cache"
python3 tests/gpu/needed.py 2>/dev/null || exit 2  # nvImageCodec tells there of GPU libraries that the CPU needs not
touch "$out/parts.txt"
# A shorter queue than usual, which a turn must use up before it is timed.
data=("data.root=$out/cache/images" data.train_folder=. data.val_folder=. data.num_workers=auto data.prefetch_factor=2
    logger=csv)
study=(python3 -m imagenet_opt.cli.main study)
tests=(python3 -m pytest tests/gpu/test_[!d]*.py tests/gpu/test_d*.py -o addopts="--import-mode=importlib -q"
    --durations=20)

ended_well() { # NAME
    grep -q "^$1 0 " "$out/parts.txt"
}

part() { # NAME SECONDS COMMAND...: if it is asked for and has not ended well; for so long at most
    local name=$1 began=$SECONDS left=$((limit - SECONDS)) status=124
    [ $left -lt "$2" ] || left=$2
    shift 2
    case ,$only, in *,$name,*) ;; *) return 0 ;; esac
    ! ended_well "$name" || return 0
    if [ $left -gt 0 ]; then
        # Where a shell ignores SIGINT, as for what it runs in the background, its children would too.
        timeout --signal=INT --kill-after=10 $left env --default-signal=INT "$@" > >(tee "$out/$name.log") 2>&1
        status=$?
    fi
    [ "$status" -eq 0 ] || failed=1
    echo "$name $status $((SECONDS - began))" >>"$out/parts.txt"
}

if [ "$only" = cifar10 ]; then
    part cifar10 $limit python3 train.py experiment=cifar10 data.root="$images" logger=csv \
        hydra.run.dir="$out/cifar10" "${@:3}"
    [ $failed -ne 0 ] || rm -rf "${out:?}"/cifar10/checkpoints "$out"/cifar10/*.ckpt
else
    timeout 60 python3 tests/gpu/repeated.py "$out" $((steps * batch)) ${images:+"$images"} || exit 2
    part first 330 python3 tests/gpu/first.py "$out/first.json" --batch 384
    part quick_tests 300 "${tests[@]}" -m "not slow" --junitxml="$out/quick_tests.xml"
    part small_card $limit python3 tests/gpu/small_card.py --seconds $((limit - SECONDS - 20)) "$out" "${data[@]}"
    rm -rf "${out:?}"/small_card/*/run/checkpoints "$out"/small_card/*/run/*.ckpt
    data+=("data.batch_size=$batch")
    case ,$only, in *,run,*) ended_well run || rm -rf "${out:?}/run" ;; esac
    part run 180 env TORCHINDUCTOR_CACHE_DIR="$out/short_ladder/compiled" \
        python3 train.py experiment=aggressive "${data[@]}" callbacks.acceleration.cuda_graph=true \
        trainer.max_steps=$steps trainer.limit_val_batches=0 hydra.run.dir="$out/run"
    rm -rf "${out:?}"/run/checkpoints "$out"/run/*.ckpt
    part anatomy 90 "${study[@]}" study=anatomy "${data[@]}" --seconds 3 --folder "$out/anatomy"
    part short_ladder $limit "${study[@]}" study=tests/gpu/short_ladder.yaml "${data[@]}" --budget 3m --parity 0 \
        --folder "$out/short_ladder"
    part slow_tests $limit "${tests[@]}" -m slow --junitxml="$out/slow_tests.xml"
    part ladder $limit "${study[@]}" study=tests/gpu/ladder.yaml "${data[@]}" --repeats 2 --seconds 1.5 --parity 40 \
        --folder "$out/ladder"
fi
[ "$only" = cifar10 ] || [ $failed -ne 0 ] || rm -rf "${out:?}/cache" "$out"/*/compiled
python3 tests/gpu/report.py "$out" || failed=1
left=
for name in ${only//,/ }; do ended_well "$name" || left+=" $name"; done
echo "parts left:${left:- none}"
exit $failed

"""A mistake on a command line ends in one line that names what to change, and in status 2."""

import shlex
import sys
from pathlib import Path

import pytest

from imagenet_opt.cli import main as program
from imagenet_opt.cli.mistakes import check_flags, report_mistakes
from imagenet_opt.config.compose import composed
from imagenet_opt.config.dataset import check_folders
from imagenet_opt.training.build_run import build_run

OF_COMMANDS = {
    "exprot": "did you mean export?",
    "bench --repeats 0": "--repeats 0",
    "bench --against dalli": "did you mean dali",
    "bench --json /nowhere/found.json": "--json /nowhere/found.json",
    "check --sample 0": "--sample 0",
    "check ckpt=": "ckpt",
    "dashboard": "--entity",
    "doctor --budget=1s": "--budget",
    "doctor --json=/absent/folder/file.json": "--json",
    "evaluate": "ckpt=RUN_FOLDER",
    "evaluate ckpt=a model.pretrained=true": "ckpt=RUN_FOLDER",
    "evaluate ckpt=a eval=timm data.val_image_size=288": "data.val_image_size=288",
    "evaluate ckpt=a --json /nowhere/a.json": "--json /nowhere/a.json",
    "export": "ckpt=RUN_FOLDER",
    "export ckpt=a.ckpt fromat=onnx": "did you mean format=?",
    "export ckpt=a.ckpt format=torchscript": "format=torchscript",
    "export ckpt=a.ckpt out=model.onnx": "out=model.onnx",
    "export ckpt=a.ckpt image_size=0": "image_size=0",
    "export ckpt=a.ckpt hub=resnet50": "hub=resnet50",
    "export ckpt=a.ckpt hub=a/b out=c.safetensors": "out=c.safetensors",
    "export ckpt=a.ckpt --dry-run b": "hub=OWNER/NAME",
    "hydrate": "data.root",
    "hydrate --in-flight 0": "--in-flight 0",
    "hydrate --inflight": "--inflight",
    "pack": "data.root is missing",
    "pack --verify": "out is missing",
    "pack root=a": "did you mean data.root=?",
    "pack data.root=a out=": "out has no value",
    "pack data.root=a out=b for=300": "for=300",
    "pack data.root=a out=b max_side=0": "max_side=0",
    "pack data.root=a out=b shard_mb=nan": "shard_mb=nan",
    "plan --loader-rate 0": "--loader-rate 0",
    "plan --budget -5 --price-per-hour 1": "--budget -5",
    "plan --budget 90s --price-per-hour 1": "--budget 90s",
    "plan --budget 25": "--price-per-hour",
    "plan experiment=rn18_ffcv --budget 0.1 --price-per-hour 0.5": "--budget 0.1",
    "plan --budget 25 --price-per-hour 1 trainer.max_epochs=3": "trainer.max_epochs=3",
    "plan data=folder trainer.max_epochs=-1": "trainer.max_epochs",
    "plan data=folder data.batch_size=auto": "data.batch_size",
    "plan data=folder data.batch_size=2000000": "data.batch_size",
    "plan data=folder model.num_classes=10": "model.num_classes",
    "plan -b 64 seed=3": "data.batch_size? (imagenet-opt plan --help",
    "report nowhere": "nowhere: ",
    "report . --baseline nowhere": "--baseline nowhere: ",
    "report .": "holds nothing to report",
    "report --verify .": "record.json",
    "report --verify . --baseline .": "--baseline",
    "study study=laddr": "did you mean ladder?",
    "study study=nosuch.yaml": "nosuch.yaml",
    "study ladder data=demo": "did you mean study=ladder?",
    "study --repeats 1": "--repeats 1",
    "study --repeats 3 --budget 5m": "--budget",
    "study --budget 5m study=read": "--repeats and --seconds",
    "study --apply study=scaling": "--apply",
    "study --apply --parity 0": "--parity STEPS above 0",
    "study study=read study.num_workers=[4": "study.KEY=VALUE",
    "study study=read study.kind=queue": "kind=queue",
    "study study=read study.num_wokers=[4]": "did you mean num_workers?",
    "study study=read study.num_workers=[0]": "num_workers.0=0: ",
    "study data=demo rehearse=a10g": "leave rehearse= out",
    "tune --budget=soon": "--budget soon",
    "tune --aply": "imagenet-opt tune --help",
    "tune --json=/nowhere/found.json": "--json",
}
OF_KEYS = {
    "/tmp": "did you mean data.root=/tmp?",
    "rn50_a2": "KEY=VALUE, such as experiment=rn50_a2",
    "expriment=rn18_ffcv": "did you mean experiment?",
    "experiment=agressive": "did you mean aggressive?",
    "recipe=rn50_a2": "add experiment=rn50_a2",
    "data.bath_size=4": "did you mean data.batch_size?",
    "arch=3": "did you mean model.name=3?",
    "+trainer.accumulate_grad_batches=3": "set data.global_batch_size",
    "trainer.max_time=00:01:00:00": "+trainer.max_time=00:01:00:00",
    "+callbacks.mixin.mode=on": "mixing",
    "callbacks.mixing.mixup_alpha=0.4": "callbacks.mixing.mode=on",
    "+callbacks.mixing.mixup_alfa=1": "did you mean callbacks.mixing.mixup_alpha?",
    "+model.ls_init_value=1": "model.options.ls_init_value=1",
    "model.options.drop_path_rate=0.1": "model.drop_path_rate",
    "model=resnet101": "model.name=NAME",
    "optimizer.eps=1": "+optimizer.eps=1",
    "+optimizer.momentun=1": "did you mean momentum?",
    "optimizer.name=sdg": "optimizer.name); did you mean sgd?",
    "optimizer.name=adahessian": "optimizer.name=adahessian",
    "model.name=test_vit +model.options.img_sise=96": "img_size",
    "~logger.mine": "leave out ~logger.mine",
    "~model.name": "leave out ~model.name",
    "data=demo data.root=/d": "add data=folder",
    "data.mean=[0.4": "data.mean",
    "data.val_crop_ratio=7": "data.val_crop_ratio=7",
    "experiment=rn18_ffcv data.image_size=64": "data.image_size=64",
    "experiment=rn50_ffcv data.batch_size=64 data.global_batch_size=128": "data.batch_size=64",
    "model.label_smoothing=2": "model.label_smoothing=2",
    "model.max_grad_norm=-1": "model.max_grad_norm=-1",
    "model.max_grad_norm=nan": "model.max_grad_norm=nan",
    "optimizer.lr=fast": "optimizer.lr=fast",
    "optimizer.momentum=null": "optimizer.momentum=null",
    "optimizer.weight_decay=-1": "optimizer.weight_decay=-1",
    "optimizer=adamw optimizer.betas=0.9": "optimizer.betas=0.9",
    "+optimizer.maximize=on": "optimizer.maximize='on'",
    "schedule.final_factor=-1": "schedule.final_factor=-1",
    "trainer.max_epochs=1.5": "trainer.max_epochs=1.5",
    "trainer.max_steps=-5": "trainer.max_steps=-5",
    "trainer.precision=17-mixed": "trainer.precision=17-mixed",
    "callbacks.acceleration.compile_mode=foo": "compile_mode='foo'",
    "callbacks.profiler.num_steps=2": "callbacks.profiler.start_step=10",
    "callbacks=[mixing,profiler]": "callbacks.profiler.start_step=10",
    "+callbacks=profiler": "callbacks.profiler.start_step=10",
    "data=folder callbacks.resolution_schedule.start=100": "callbacks.resolution_schedule: start=100",
    "data=folder callbacks.resolution_schedule.start=160 callbacks.resolution_schedule.grow_from=0.9": "grow_from=0.9",
    "experiment=rn50_mild callbacks=[mixing,ema]": "add resolution_schedule to callbacks=[...]",
    "allow_targets=[tests] +callbacks.mine._target_=tests.conftest.nope": "tests.conftest has no nope",
}
"""Overrides, which all commands check alike."""
OF_RUNS = {
    "--batch-size=64": "did you mean data.batch_size=64? (imagenet-opt train --help",
    "{tiny} callbacks.acceleration.cuda_graph=true callbacks.acceleration.gradient_checkpointing=true": "cuda_graph=",
    "{tiny} callbacks.acceleration.compile=true callbacks.acceleration.cuda_graph=true "
    "callbacks.acceleration.compile_mode=reduce-overhead": "cuda_graph=false",
    "{tiny} callbacks.checkpoint.every_minutes=nan": "callbacks.checkpoint.every_minutes=nan",
    "{tiny} callbacks.checkpoint.keep=0": "callbacks.checkpoint.keep=0",
    "{tiny} callbacks.checkpoint.mirror=/backup/run": "callbacks.checkpoint.mirror=/backup/run",
    "{tiny} callbacks.checkpoint.mirror=https://host/run": "callbacks.checkpoint.mirror=https://host/run",
    "{tiny} callbacks.checkpoint.monitor=val/acc5": "callbacks.checkpoint.monitor",
    "{tiny} callbacks.ema.decay=1.0": "callbacks.ema.decay=1.0",
    "{tiny} callbacks.ema.decay=0.5 callbacks.ema.update_every_n_steps=0": "callbacks.ema.update_every_n_steps=0",
    "{tiny} callbacks.mixing.mode=on callbacks.mixing.mixup_alpha=0 callbacks.mixing.cutmix_alpha=0": "mixup_alpha=0",
    "{tiny} callbacks.profiler.start_step=-1": "callbacks.profiler.start_step",
    "{tiny} model.num_classes=2": "model.num_classes",
    "{tiny} model.freeze=all_but_head": "set model.init_from",
    "{tiny} model.pretrained=true model.init_from=x": "model.init_from",
    "{tiny} resume_from=s3://bucket/best.ckpt": "resume_from=s3://bucket/best.ckpt",
    "{tiny} trainer.accelerator=gpu": "trainer.accelerator=gpu",
    "{tiny} trainer.num_nodes=0": "trainer.num_nodes=0",
    "{tiny} model.name=vit_tiny_patch16_224 data.image_size=224 data.val_image_size=256": "model.options.img_size=256",
}
MISTAKES = {
    "ConfigError": OF_COMMANDS
    | {f"plan {line}": words for line, words in OF_KEYS.items()}
    | {f"train {line}": words for line, words in OF_RUNS.items()},
    "BatchTooLarge": {"train {tiny} data.batch_size=20 trainer.devices=2": "data.batch_size=19 or less"},
    "CheckpointNotFound": {
        "evaluate ckpt=none.ckpt": "(ckpt)",
        "train {tiny} resume_from=/nowhere/last.ckpt": "/nowhere/last.ckpt (resume_from)",
    },
    "DatasetNotFound": {
        "plan data.root=/nowhere": "/nowhere (data.root)",
        "train data.root=/nowhere": "train data=demo",
    },
    "RunFolderError": {"study data=demo --folder {root}/train/class0/image000.JPEG": "--folder FOLDER"},
    "ModelError": {
        "train {tiny} model.name=test_vit model.blurpool=true": "set model.blurpool=false",
        "train {tiny} model.name=test_vit model.blurpool=strided_convs": "set model.blurpool=false",
        "train {tiny} model.small_stem=true model.name=resnet10t": "set model.small_stem=false",
        "train {tiny} model.name=test_vit model.zero_init_last=false": "model.zero_init_last=true",
        "train {tiny} model.name=resnet10t +model.options.global_pool=nothing": "global_pool=nothing (model.options)",
    },
    "UnknownModel": {
        "plan model.name=resnet5O": "did you mean resnet50?",
        "plan model.name=resnet18.tv": "it has resnet18.",
    },
}
"""Class of the error -> command line -> what the line on stderr says."""
TINY = "data.root={root} data.cache_dir=. model.name=test_resnet data.image_size=32 data.batch_size=6 logger=csv"


def train(words: list[str]) -> None:
    """Checks and builds a run as train.py does, without Hydra's own main, which sets signals and logs of a process."""
    check_flags(words)
    build_run(composed(tuple(words), check_folders))


@pytest.mark.parametrize(("error", "line"), [(error, line) for error, lines in MISTAKES.items() for line in lines])
def test_a_mistake_is_one_line(
    error: str,
    line: str,
    images_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = line.replace("{tiny}", TINY).replace("{root}", str(images_root))
    monkeypatch.setattr(sys, "argv", ["imagenet-opt", *shlex.split(words, posix="'" in words)])
    with pytest.raises(SystemExit) as ended:
        program.main() if sys.argv[1] != "train" else report_mistakes(lambda: train(sys.argv[2:]))
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith(f"{error}: ") and MISTAKES[error][line] in err

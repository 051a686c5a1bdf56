"""A mistake on a command line ends in one line that names what to change, and in status 2, before any work."""

import shlex
import sys

import pytest

from imagenet_opt.cli import main as program

MISTAKES = {
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
    "export": "ckpt is missing",
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
    "plan --budget 25 --price-per-hour 1 trainer.max_epochs=3": "trainer.max_epochs=3",
    "report nowhere": "nowhere: ",
    "report . --baseline nowhere": "--baseline nowhere: ",
    "study study=laddr": "did you mean ladder?",
    "study study=nosuch.yaml": "nosuch.yaml",
    "study ladder data=demo": "did you mean study=ladder?",
    "study --repeats 1": "--repeats 1",
    "study --repeats 3 --budget 5m": "--budget",
    "study --budget 5m study=read": "--repeats and --seconds",
    "study --apply study=scaling": "--apply",
    "study --apply --parity 0": "--parity STEPS above 0",
    "study study=read study.num_workers=[4": "study.KEY=VALUE",
    "study study=read study.kind=queue": "kind=queue must be one of steps, read, scaling",
    "study study=read study.num_wokers=[4]": "did you mean num_workers?",
    "study study=read study.num_workers=[0]": "num_workers.0=0: ",
    "tune --budget=soon": "--budget soon",
    "tune --aply": "imagenet-opt tune --help",
    "tune --json=/nowhere/found.json": "--json",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["imagenet-opt", *shlex.split(line)])
    with pytest.raises(SystemExit) as ended:
        program.main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("ConfigError: ") and MISTAKES[line] in err

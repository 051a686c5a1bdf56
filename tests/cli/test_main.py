"""The command table as a user meets it, in processes of its own."""

import subprocess
import sys
from importlib import import_module

import pytest

import imagenet_opt
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.cli.main import COMMANDS, run
from imagenet_opt.cli.pack import KEYS
from imagenet_opt.evaluate.view import CONVENTIONS

HEAVY = ("torch", "timm", "lightning", "hydra", "numpy")


def imagenet_opt_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "imagenet_opt.cli.main", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command_on_a_line_of_its_own(arguments: list[str]) -> None:
    done = imagenet_opt_command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    for name, (_, what) in COMMANDS.items():
        assert [name, *what.split()] in lines
    assert "python train.py --help" in done.stdout


def test_version_is_the_packages() -> None:
    assert imagenet_opt_command("--version").stdout == f"imagenet-opt {imagenet_opt.__version__}\n"


@pytest.mark.parametrize(
    ("name", "hint"), [("exprot", "did you mean export?"), ("zzz", "imagenet-opt --help lists them")]
)
def test_an_unknown_command_is_one_line_with_near_names(name: str, hint: str) -> None:
    done = imagenet_opt_command(name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ConfigError: there is no command {name}; {hint}\n"


def test_a_mistake_inside_a_command_is_one_line_too() -> None:
    done = imagenet_opt_command("export", "format=onnx")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ConfigError: ckpt is missing") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("bench", [*(f" {name}" for name in PEERS), "--batches", "--repeats", "--against", "--json"]),
        ("check", ["1 with errors"]),
        ("evaluate", [*(f" {name}" for name in CONVENTIONS), "--tta", "--per-class", "--json"]),
        ("doctor", ["--budget", "--json", "--apply", "--record-profile"]),
        ("hydrate", ["Files may be released again"]),
        ("pack", [f"\n  {key}  " for key in (*KEYS, "--verify")]),
        ("tune", ["--budget", "--json", "data.batch_size=auto"]),
        ("dashboard", ["--entity", "--project", "--dry-run"]),
    ],
)
def test_help_of_a_command_names_its_options(
    command: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    module = import_module(f"imagenet_opt.cli.{command}")
    run(command, ["out=x", "--help"])
    text = capsys.readouterr().out
    assert text.strip() == module.HELP.strip() and max(map(len, text.splitlines())) <= 120
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], HEAVY),
        (["--version"], HEAVY),
        (["export", "--help"], ("torch", "timm", "lightning")),
        (["dashboard", "--help"], ("torch", "timm", "lightning", "wandb")),
        (["pack", "--help"], ("torch", "timm", "lightning", "numpy")),
        (["hydrate", "--help"], ("torch", "timm", "lightning", "numpy")),
        (["check", "--help"], ("torch", "timm", "lightning", "numpy")),
    ],
)
def test_help_waits_for_no_heavy_import(arguments: list[str], absent: tuple[str, ...]) -> None:
    code = (
        "import sys; from imagenet_opt.cli.main import main; main(); "
        f"sys.exit(', '.join(name for name in {absent} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_imported_before_a_data_root_is_looked_for_is_light() -> None:
    code = (
        "import sys, imagenet_opt.cli.mistakes, imagenet_opt.config.dataset, imagenet_opt.sweep.job, "
        "imagenet_opt.training.folder_lock, imagenet_opt.data.index.folder_index; "
        "sys.exit(', '.join({'torch', 'timm', 'lightning', 'wandb'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

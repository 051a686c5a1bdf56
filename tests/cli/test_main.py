"""The commands of imagenet-opt: help, version, mistakes and imports."""

import subprocess
import sys
from importlib import import_module

import pytest

import imagenet_opt
from imagenet_opt.cli.help_text import fitted
from imagenet_opt.cli.main import COMMANDS, main

HEAVY = ("torch", "timm", "lightning", "hydra", "numpy")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_lists_every_command_on_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["imagenet-opt", *arguments])
    main()
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    for name, (_, purpose) in COMMANDS.items():
        assert [name, *purpose.split()] in lines


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns_between_words(name: str) -> None:
    text = import_module(COMMANDS[name][0]).HELP or ""
    lines = fitted(text, 80).splitlines()
    assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []
    assert " ".join(lines).split() == text.split(), "the same words in the same order"


def test_a_reader_that_stops_reading_ends_the_command_without_a_traceback() -> None:
    command = [sys.executable, "-m", "imagenet_opt.cli.main", "plan", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_without_arguments_the_first_page_shows_commands_that_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["imagenet-opt"])
    main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    names = [words[1] for words in lines if words[:1] == ["imagenet-opt"] and words[1] != "--help"]
    assert len(names) == 5 and set(names) <= COMMANDS.keys()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["exprot"], "ConfigError: there is no command exprot; did you mean export?"),
        (["zzz"], "ConfigError: there is no command zzz; imagenet-opt --help lists the commands"),
        (
            ["export", "format=onnx"],
            "ConfigError: ckpt is missing; add ckpt=RUN_FOLDER or ckpt=FILE (imagenet-opt export --help)",
        ),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["imagenet-opt", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, *capsys.readouterr()) == (2, "", f"{line}\n")


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--version"], HEAVY),
        (["export", "--help"], ("torch", "timm", "lightning")),
        (["dashboard", "--help"], ("torch", "timm", "lightning", "wandb")),
        *(([name, "--help"], ("torch", "timm", "lightning", "numpy")) for name in ("pack", "hydrate", "check")),
    ],
)
def test_help_and_version_import_no_heavy_module(arguments: list[str], absent: tuple[str, ...]) -> None:
    done = without_modules("from imagenet_opt.cli.main import main; main()", *arguments, absent=absent)
    assert (done.returncode, done.stderr) == (0, "")
    if arguments == ["--version"]:
        assert done.stdout == f"imagenet-opt {imagenet_opt.__version__}\n"


def test_modules_that_check_the_data_root_import_no_heavy_module() -> None:
    modules = ("cli.mistakes", "config.dataset", "sweep.job", "training.folder_lock", "data.index.folder_index")
    code = f"import {', '.join(f'imagenet_opt.{module}' for module in modules)}"
    done = without_modules(code, absent=("torch", "timm", "lightning", "wandb"))
    assert (done.returncode, done.stderr) == (0, "")


def without_modules(code: str, *arguments: str, absent: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter, which fails with the names of those `absent` modules that it has imported."""
    check = f"import sys; sys.exit(', '.join(name for name in {absent} if name in sys.modules) or 0)"
    return subprocess.run([sys.executable, "-c", f"{code}; {check}", *arguments], capture_output=True, text=True)

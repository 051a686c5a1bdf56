"""Every command of README, docs/, examples/ and launch/ is one that the programs accept.

A command line is parsed by its command, and its overrides are composed as a run would. A block after the comment
`<!-- not run: why -->`, or `words`<!-- not run: why -->, is left out. Commands that need a GPU, a cloud or hours are
not started here; these tests start the others: test_train.py (train, resume), sweep/ (-m), test_examples.py (examples/,
init), cli/ (each command on small data), launch/test_launch_files.py (torchrun, SLURM, SkyPilot), end_to_end/ (a new
machine, object storage).
"""

import re
import tomllib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from imagenet_opt.cli.main import COMMANDS, run
from imagenet_opt.cli.mistakes import check_flags
from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.evaluate.view import CONVENTIONS
from imagenet_opt.study.request import Request, checked_options
from tests.docs_commands import Command, commands_of

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "launch/*.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"  # names what is gone, too
)
GROUPS = {folder.name for folder in config_folder().iterdir() if folder.is_dir()} | {"eval"}
NEEDED = {"pack": ["data.root=/in", "out=/out"], "export": ["ckpt=RUN"], "report": ["RUN"], "init": ["new_folder"]}
"""What a sentence that only names a command leaves out."""
OWN_PROJECT = (f"hydra.searchpath=[file://{ROOT}/examples/project/conf]", "allow_targets=[my_callbacks]")
"""What the train.py of `imagenet-opt init` adds."""
COMPOSED: set[tuple[str, ...]] = set()
FILES = ("--json", "--out", "--page")


@pytest.fixture
def accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], None]:
    """A function that raises if the programs refuse the words of a command."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text((config_folder() / "study/ladder.yaml").read_text())
    return _accept


def _accept(words: Sequence[str]) -> None:
    words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    program, rest = words[0].removesuffix("3"), words[1:]
    if "train.py" in words:  # also after torchrun and srun with their own options
        argv = words[words.index("train.py") + 1 :]
        if "experiment=mine" in argv and argv[0] in COMMANDS:  # a project of one's own
            return _accept_command(argv[0], argv[1:])
        _accept_training(argv)
    elif program == "pip":
        _accept_extras(rest)
    elif "imagenet-opt" in words[:-1]:
        name, *argv = words[words.index("imagenet-opt") + 1 :]
        _accept_command(name, argv)
    elif program == "python":
        _accept_module(rest)
    else:  # a script, perhaps after sbatch
        for word in words:
            assert "/" not in word or "=" in word or (ROOT / word).is_file(), f"there is no {word}"


def _accept_command(name: str, argv: list[str]) -> None:
    if name in ("COMMAND", "--help", "--version"):
        return
    if name == "train":
        return _accept_training(argv)
    if name not in COMMANDS or {"--help", "-h"} & set(argv):
        return run(name, argv)
    argv = _filled(name, argv)
    if name in ("init", "dashboard"):
        return run(name, [*argv, *["--dry-run"] * (name == "dashboard")])
    _make_files(name, argv)
    options = import_module(COMMANDS[name][0]).parse(argv)
    _check_convention(getattr(options, "convention", None))
    if name == "study":
        _check_study(options)
    _compose(tuple(getattr(options, "overrides", ())))


def _filled(name: str, argv: list[str]) -> list[str]:
    """The arguments with values for placeholders such as FILE, and for what a sentence leaves out."""
    argv = [
        "60" if word.isupper() and before.startswith("--") and before not in FILES else word
        for before, word in zip(["", *argv], argv, strict=False)
    ]
    if name == "evaluate" and not any(word.startswith(("ckpt=", "model.pretrained=true")) for word in argv):
        argv = ["ckpt=RUN", *argv]
    if name == "report" and any(not word.startswith("-") for word in argv):
        return argv
    takes_overrides = name not in ("report", "init", "dashboard")
    needed = NEEDED.get(name, [])
    if name == "init" and argv:
        needed = []
    return [*needed, *(_known(argv) if takes_overrides else argv)]


def _known(words: Sequence[str]) -> list[str]:
    """The words without placeholders: KEY=VALUE, SAMPLE, experiment=NAME, experiment=tuned_<host>_tune."""
    kept: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        key, equals, value = word.lstrip("+~").partition("=")
        is_value = before.startswith("--")
        if not is_value and key.isupper():
            continue
        if key in GROUPS and (value.isupper() or "<" in value or value == "..."):
            continue
        kept.append(f"{key}=x" if equals and value == "..." else word)
    return kept


def _accept_training(argv: list[str]) -> None:
    check_flags(argv)
    arguments = get_args_parser().parse_args(_known(argv))
    overrides = arguments.overrides
    if arguments.multirun:
        parsed = OverridesParser.create().parse_overrides(overrides)
        overrides = [
            f"{one.get_key_element()}={next(one.sweep_string_iterator())}" if one.is_sweep_override() else typed
            for one, typed in zip(parsed, overrides, strict=True)
        ]
    _compose(tuple(overrides))


def _compose(overrides: tuple[str, ...]) -> None:
    """Compose as a run would; each set of overrides once, whatever the folder of the images."""
    overrides = tuple(re.sub(r"^data\.root=[^:]*$", "data.root=/images", word) for word in overrides)
    if overrides in COMPOSED:
        return
    try:
        composed((*overrides, *OWN_PROJECT) if "experiment=mine" in overrides else overrides)
    except ConfigError as error:
        if "package that is not installed" not in str(error):  # Ray, which is not among the packages for development
            raise
    COMPOSED.add(overrides)


def _check_study(request: Request) -> None:
    """The keys of its file, with the changes of the command line."""
    place = "steps" if request.kind == "steps" else f"kinds.{request.kind}"
    module = import_module(f"imagenet_opt.study.{place}")
    model = next(filter(None, (getattr(module, name, None) for name in ("StepsFile", "Scaling", "Options"))))
    checked_options(model, request)


def _check_convention(name: str | None) -> None:
    if name is not None and name not in CONVENTIONS:
        raise ConfigError(f"there is no eval={name}")


def _make_files(name: str, argv: list[str]) -> None:
    """Make the runs and folders that the command line names below the present folder."""
    for before, word in zip(["", *argv], argv, strict=False):
        if before in FILES:
            Path(word).parent.mkdir(parents=True, exist_ok=True)
        elif name == "report" and not word.startswith("-"):
            Path(word).mkdir(parents=True, exist_ok=True)


def _accept_extras(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for names in re.findall(r"(?:imagenet-opt|\.)\[([\w,]+)\]", " ".join(words)):
        for name in names.split(","):
            assert name in project["optional-dependencies"], f"there is no extra {name}"


def _accept_module(words: list[str]) -> None:
    """The module or file exists, and has these flags in its text."""
    if not words:
        return
    name = words[1] if words[0] == "-m" else words[0]
    if words[0] == "-c" or (words[0] == "-m" and not name.startswith(("suites.", "tests."))):
        return
    path = name if name.endswith(".py") else f"{name.replace('.', '/')}.py"
    file = next((folder / path for folder in (ROOT, ROOT / "examples") if (folder / path).is_file()), None)
    assert file is not None, f"there is no {name}"
    flags = [word.partition("=")[0] for word in words if word.startswith("--") and word != "--help"]
    for flag in flags:
        assert f'"{flag}"' in file.read_text(), f"{name} has no {flag}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_accept_the_commands_of_the_page(page: Path, accept: Callable[[Sequence[str]], None]) -> None:
    commands = commands_of(page.read_text(), str(page.relative_to(ROOT)))
    refused = [f"{command}\n    {why}" for command in commands if (why := _refusal(command, accept))]
    assert refused == [], "\n" + "\n".join(refused)


def _refusal(command: Command, accept: Callable[[Sequence[str]], Any]) -> str:
    try:
        accept(command.words)
    except (ImagenetOptError, HydraException, OmegaConfBaseException, AssertionError, SystemExit, OSError) as error:
        return str(error).splitlines()[0] if str(error) else repr(error)
    return ""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("    imagenet-opt doctor data.rot=/fsx/imagenet      a key that does not exist", "data.rot"),
        ("    python train.py experiment=rn50_fcv16  # a recipe that does not exist", "rn50_fcv16"),
        ("```bash\nimagenet-opt plan experiment=rn50_ffcv \\\n  --loader-rat 1100\n```", "--loader-rat"),
        (
            "| a sweep | `imagenet-opt train -m data.batch_sizes=256,384 ...` | [x](x.md) |",
            "data.batch_sizes",
        ),
        ("A sentence names `imagenet-opt pack fro=224`.", "fro"),
        ("    torchrun --nproc-per-node=4 train.py trainer=multi_nod", "multi_nod"),
        ("    cd mine && imagenet-opt studdy", "studdy"),
        ("    imagenet-opt study study=reed", "reed"),
        ("    imagenet-opt study study=read study.num_worker=[4,8]", "num_worker"),
        ("    imagenet-opt evaluate ckpt=RUN eval=ffvc", "ffvc"),
        ("    python train.py --batch-size 64", "--batch-size"),
        ('    pip install "imagenet-opt[clowd]"', "clowd"),
        ("    python -m suites.fuzz.walk", "walk"),
        ("    python -m suites.fuzz.run --minuts 10", "--minuts"),
        ("    tests/gpu/walk.sh OUT", "walk.sh"),
    ],
)
def test_a_mistake_is_found(text: str, named: str, accept: Callable[[Sequence[str]], None]) -> None:
    (command,) = commands_of(f"Text before.\n\n{text}\n")
    assert named in _refusal(command, accept)


def test_a_block_or_words_may_be_left_out() -> None:
    text = "<!-- not run: planned -->\n\n    imagenet-opt fly\n    imagenet-opt swim\n\n    imagenet-opt doctor a\n"
    text += "`imagenet-opt dive`<!-- not run: planned --> and `imagenet-opt tune b`\n"
    assert [command.words[1] for command in commands_of(text)] == ["doctor", "tune"]

"""The command that resumes a run works from every folder."""

import shlex
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

from imagenet_opt.training import preempted


@pytest.mark.parametrize(
    ("line", "program", "launcher"),
    [
        ("/bin/imagenet-opt train seed=1 resume_from=a.ckpt", "imagenet-opt train", {}),
        ("train.py seed=1 hydra.run.dir=runs/x --config-dir conf", "python {here}/train.py", {}),
        ("train.py seed=1", "torchrun ... {here}/train.py", {"TORCHELASTIC_RUN_ID": "none"}),
    ],
)
def test_the_command_is_the_typed_one_with_an_absolute_folder(
    line: str, program: str, launcher: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "it's, an=app"
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(preempted, "typed", line.split())
    begin = program.format(here=tmp_path)
    command = preempted.command("hydra.run.dir", Path("it's, an=app"))
    assert command.startswith(f"{begin} ")
    overrides, unknown = get_args_parser().parse_known_args(shlex.split(command.removeprefix(begin)))
    parsed = OverridesParser.create().parse_overrides(overrides.overrides)
    assert {each.key_or_group: each.value() for each in parsed} == {"seed": 1, "hydra.run.dir": str(folder)}
    assert not unknown

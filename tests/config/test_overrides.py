"""Completion of the command line, and messages about mistakes: one line with the remedy."""

import re
import sys
from pathlib import Path

import pytest

from imagenet_opt.cli.arguments import Parser
from imagenet_opt.cli.mistakes import check_flags, report_mistakes
from imagenet_opt.config.compose import composed
from imagenet_opt.config.keys import check_keys, defaults
from imagenet_opt.config.overrides import complete
from imagenet_opt.errors import ConfigError, ImagenetOptError, TooManyBadSamples


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "experiment=demo"),
        ("data=demo -m seed=1,2", "-m experiment=demo data=demo seed=1,2"),
        ("data.root=/d --cfg job", "data=folder data.root=/d --cfg job"),
        ("+experiment=baseline", "experiment=baseline"),
        ("data=demo experiment=[baseline,mine]", "data=demo experiment=[baseline,mine]"),
        ("--help logger=null", "--help logger=[]"),
        ("+rehearse=a10g data.root=/d experiment=mine", "data=folder rehearse=a10g data.root=/d experiment=mine"),
        ("rehearse=null experiment=null", "~rehearse ~experiment"),
        ("data.root=~/d", f"data=folder data.root={Path.home()}/d"),
    ],
)
def test_command_line_is_completed_once(words: str, expected: str) -> None:
    assert complete(words.split()) == expected.split()
    assert complete(expected.split()) == expected.split()


def test_a_value_gets_the_form_of_the_default() -> None:
    config = composed(("optimizer.nesterov=off", "trainer.max_steps=1e3", 'optimizer.lr="0.5"'))
    assert (config.optimizer.nesterov, config.trainer.max_steps, config.optimizer.lr) == (False, 1000, 0.5)


TEXTS = (
    "data.cache_dir",
    "data.root",
    "logger.trackio.name",
    "logger.trackio.space_id",
    "logger.wandb.name",
    "model.freeze",
    "model.init_from",
    "price_per_hour",
    "recipe",
)


@pytest.mark.parametrize("key", sorted(key for key, value in defaults().items() if value is None and key not in TEXTS))
def test_a_word_is_refused_without_torch_where_null_stands_for_a_number_or_a_choice(key: str) -> None:
    group, *names = key.split(".")
    value: object = "abc"
    for name in reversed(names):
        value = {name: value}
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)}=abc must be"):
        check_keys({group: value})


def test_an_optional_callback_is_off_until_a_key_has_a_value() -> None:
    def callbacks(*words: str) -> set[str]:
        return set(composed(words).callbacks) & {"ema", "resolution_schedule", "early_stop", "profiler"}

    assert callbacks() == callbacks("callbacks.early_stop.stopping_threshold=null") == set()
    assert callbacks("callbacks=[mixing,ema]", "callbacks.ema.decay=0.9") == {"ema"}
    assert callbacks("callbacks.early_stop.patience=5", "callbacks.ema.decay=0.9") == {"early_stop", "ema"}
    assert callbacks("experiment=rn50_mild") == {"ema", "resolution_schedule"}
    with pytest.raises(ConfigError, match=r"add resolution_schedule to callbacks=\[\.\.\.\]"):
        callbacks("experiment=rn50_mild", "callbacks=[mixing,ema]")
    assert callbacks("experiment=rn50_mild", "callbacks.ema.decay=null") == {"resolution_schedule"}
    for word in ("callbacks.profiler.num_steps=2", "+callbacks=profiler", "callbacks=[mixing,profiler]"):
        with pytest.raises(ConfigError, match=r"callbacks\.profiler\.start_step=10"):
            composed((word,))


def reported(mistake: str | ImagenetOptError, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr after an error, or after an override of train.py."""

    def command() -> None:
        if isinstance(mistake, ImagenetOptError):
            raise mistake
        composed(tuple(mistake.split(" ")))

    with pytest.raises(SystemExit) as ended:
        report_mistakes(command)
    text = capsys.readouterr().err
    assert (ended.value.code, text.count("\n")) == (2, 1)
    return text.rstrip("\n")


OTHERS = (
    *(("lr", "optimizer.lr"), ("epochs", "trainer.max_epochs"), ("wd", "optimizer.weight_decay")),
    *(("arch", "model.name"), ("workers", "data.num_workers"), ("batch_size", "data.batch_size")),
)
"""Words of other programs -> keys."""
LIGHTNINGS = (
    *(("accumulate_grad_batches", "set data.global_batch_size"), ("gradient_clip_val", "set model.max_grad_norm")),
    *(("overfit_batches", "each epoch has another order"), ("benchmark", "set callbacks.acceleration.cudnn_benchmark")),
)
"""Options of its Trainer -> the remedy."""
BAD_SAMPLES = TooManyBadSamples("2 bad samples: /d/a\nb.JPEG: empty; /d/b  c.JPEG: empty")


@pytest.mark.parametrize(
    ("mistake", "line"),
    [
        (BAD_SAMPLES, r"TooManyBadSamples: 2 bad samples: /d/a\nb.JPEG: empty; /d/b  c.JPEG: empty"),
        ("expriment=rn18_ffcv", "ConfigError: there is no key expriment; did you mean experiment?"),
        ("data.bath_size=4", "ConfigError: there is no key data.bath_size; did you mean data.batch_size?"),
        ("experiment=agressive", "experiment 'agressive'; did you mean aggressive? options: aggressive, baseline, "),
        *((f"{typed}=3", f"ConfigError: there is no key {typed}; did you mean {key}=3?") for typed, key in OTHERS),
        *(
            (f"+trainer.{name}=3", f"ConfigError: trainer.{name}=3 does not work here; {key}")
            for name, key in LIGHTNINGS
        ),
        ("trainer.max_time=00:01:00:00", "+trainer.max_time=00:01:00:00"),
        ("+model.ls_init_value=1", "model.options.ls_init_value=1"),
        ("data.mean=[0.4", "into quotes: \"data.mean='VALUE'\""),
        ("recipe=rn50_a2", "add experiment=rn50_a2"),
        ("model.max_grad_norm=nan", "ConfigError: model.max_grad_norm=nan must be a number"),
        ("model.options.drop_path_rate=0.1", "model.drop_path_rate"),
        ("model.name=resnet5O", "UnknownModel: timm has no model 'resnet5O' (model.name); did you mean resnet50?"),
        ("optimizer.name=sdg", "optimizer.name); did you mean sgd?"),
        ("optimizer.lr=fast", "ConfigError: optimizer.lr=fast must be a number"),
        ("trainer.max_epochs=1.5", "ConfigError: trainer.max_epochs=1.5 must be a whole number"),
        ("+callbacks.mixing.mixup_alfa=1", "callbacks.mixing.mixup_alfa; did you mean callbacks.mixing.mixup_alpha?"),
        ("optimizer.eps=1", "+optimizer.eps=1"),
        ("+optimizer.momentun=1", "did you mean momentum?"),
        ("model=resnet101", "any other network of timm: model.name=NAME"),
        (
            "data=demo data.root=/d",
            "ConfigError: there is no key data.root in the data of this configuration; add data=folder",
        ),
        ("~logger.mine", "ConfigError: leave out ~logger.mine"),
        ("trainer.max_steps=-5", "ConfigError: trainer.max_steps=-5 is out of range"),
        ("~model.name", "leave out ~model.name"),
        ("/tmp", "did you mean data.root=/tmp?"),
        ("rn50_a2", "ConfigError: rn50_a2: options are KEY=VALUE, such as experiment=rn50_a2"),
    ],
)
def test_a_mistake_is_reported_in_one_line(
    mistake: str | ImagenetOptError, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in reported(mistake, capsys)


def test_an_experiment_of_a_project_names_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    for file in ("train.py", "conf/experiment/tiny.yaml"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    for command, typed in (("", "train"), ("doctor ", "doctor")):
        monkeypatch.setattr(sys, "argv", ["imagenet-opt", typed, "experiment=tiny"])
        with pytest.raises(ConfigError, match=rf"python train\.py {command}experiment=tiny"):
            composed(("experiment=tiny",))


@pytest.mark.parametrize("words", ["--batch-size 64", "--batch-size=64", "-b 64 seed=3"])
def test_an_unknown_flag_names_the_key(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_flags(["--multi", "data.batch_size=1,2", "--cfg", "job", "-h"])
    monkeypatch.setattr("imagenet_opt.config.overrides.typed", ["imagenet-opt", "train"])
    with pytest.raises(ConfigError, match=r"did you mean data\.batch_size=64\? \(imagenet-opt train --help"):
        check_flags(words.split())
    with pytest.raises(ConfigError, match=r"data\.batch_size.*\(imagenet-opt plan --help"):
        Parser("plan").parse_intermixed_args(words.split())

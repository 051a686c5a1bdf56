"""What a user reads who made a mistake: one line, whole, with the remedy."""

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from imagenet_opt.cli.mistakes import check_flags, report_mistakes
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.config.removed_keys import REMOVED
from imagenet_opt.errors import ConfigError, ImagenetOptError, TooManyBadSamples, did_you_mean
from tests.test_config_keys import FROZEN

DATA = sorted(file.stem for file in (config_folder() / "data").glob("*.yaml"))


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose("train", ["~hydra", *overrides])


def said(mistake: str | ImagenetOptError, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that an override, or an error, ends with."""

    def command() -> None:
        if isinstance(mistake, ImagenetOptError):
            raise mistake
        composed(mistake)

    with pytest.raises(SystemExit) as ended:
        report_mistakes(command)
    text = capsys.readouterr().err
    assert (ended.value.code, text.count("\n")) == (2, 1)
    return text.rstrip("\n")


def test_no_line_of_a_message_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    error = TooManyBadSamples("2 bad samples:\n  /d/a.JPEG: imagenet_opt.errors.BadSample\n  /d/b  c.JPEG: empty\n")
    assert said(error, capsys) == (
        "TooManyBadSamples: 2 bad samples: /d/a.JPEG: imagenet_opt.errors.BadSample /d/b  c.JPEG: empty"
    )


def test_a_network_without_a_file_of_its_own_is_still_to_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    text = said("model=resnet101", capsys)
    assert text.endswith("any other network of timm: model.name=NAME, such as model.name=resnet101")
    assert "options: resnet10t, resnet18, resnet50;" in text
    assert "timm" not in said("schedule=cosin", capsys)


def test_a_word_that_is_mistyped_is_answered_with_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert said("data.bath_size=4", capsys).endswith("no key data.bath_size; did you mean data.batch_size?")
    assert said("experiment=agressive", capsys) == (
        "ConfigError: there is no experiment 'agressive'; did you mean aggressive? "
        "options: aggressive, baseline, cifar10, demo, finetune, fixres, rn18_ffcv16, rn18_ffcv24, rn18_ffcv32, "
        "rn18_ffcv40, rn18_ffcv56, rn18_ffcv88, rn50_a2, rn50_a3, rn50_classic90, rn50_ffcv16, rn50_ffcv24, "
        "rn50_ffcv32, rn50_ffcv40, rn50_ffcv56, rn50_ffcv88, rn50_mild, rn50_mlperf, rn50_tv1, rn50_tv2"
    )


@pytest.mark.parametrize(("word", "example"), [("rn50_a2", "experiment=rn50_a2"), ("fast", "data.batch_size=64")])
def test_a_word_without_a_value_is_answered_with_an_example(
    word: str, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(word, capsys) == f"ConfigError: {word}: options are KEY=VALUE, such as {example}"


def test_a_flag_in_place_of_a_key_is_answered_with_the_key() -> None:
    check_flags(["--multi", "data.batch_size=1,2", "--cfg", "job", "-h"])
    with pytest.raises(ConfigError, match=r"--batch-size: options are KEY=VALUE, such as data\.batch_size=VALUE"):
        check_flags(["--batch-size", "64"])


def test_several_names_are_suggested_only_where_they_are_equally_near() -> None:
    assert did_you_mean("data.rot", ["data", "data.root", "data.resize_on"], "") == "did you mean data.root?"
    assert did_you_mean("cab", ["cat", "car"], "") == "did you mean cat or car?"
    assert did_you_mean("zzz", ["cat", "car"], "see --help") == "see --help"


@pytest.mark.parametrize("word", ["model.on_nonfinite=skip", "+model.on_nonfinite=null"])
def test_a_removed_key_ends_in_one_line_that_says_what_holds_now(
    word: str, capsys: pytest.CaptureFixture[str], checked: None
) -> None:
    text = said(word, capsys)
    assert text.startswith("ConfigError: model.on_nonfinite was removed: a run stops at a loss that is not finite; ")


def test_no_removed_key_is_a_key() -> None:
    assert REMOVED.keys().isdisjoint(FROZEN.read_text().splitlines())


@pytest.mark.parametrize("name", DATA)
def test_each_choice_of_data_can_be_used_and_loads_as_the_others_do(name: str) -> None:
    config = composed(f"data={name}", "data.reads_in_flight=3")
    assert config.data["_target_"].startswith("imagenet_opt.data.datamodule.")
    assert config.data.reads_in_flight == 3

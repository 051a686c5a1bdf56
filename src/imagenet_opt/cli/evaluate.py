"""`imagenet-opt evaluate`: accuracy and loss of a trained network."""

import json
from argparse import Namespace
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_opt.cli.arguments import Parser, checkpoint_of, new_file, write_file
from imagenet_opt.config.overrides import key_of, last_value, without
from imagenet_opt.errors import ConfigError

if TYPE_CHECKING:  # torch takes seconds to import, and --help and mistakes do not need it
    from imagenet_opt.evaluate.network import Network

HELP = """Evaluate a trained network on the validation images: top-1, top-5 and loss.

imagenet-opt evaluate ckpt=RUN_FOLDER data.root=/fsx/imagenet
imagenet-opt evaluate ckpt=RUN_FOLDER/last.ckpt data.root=/fsx/imagenet eval=ffcv --per-class
imagenet-opt evaluate model.name=resnet50.a3_in1k model.pretrained=true data.root=/fsx/imagenet

  ckpt=PATH      a checkpoint of train.py, or a run's folder: its best.ckpt, else its last.ckpt. If the run averaged its
                 weights (EMA), the averaged weights are used. Also s3://bucket/run/best.ckpt, of a mirror
  model.pretrained=true   with model.name=NAME: timm's weights, with their own mean, std, image size, crop and
                 interpolation
  eval=NAME      evaluate as others do: torchvision and nvidia (256 to 224 px), torchvision_v2 and mosaic
                 (232 to 224 px), timm (224 px, crop 0.95, bicubic), ffcv (256 px, crop 0.875, area, mirror image
                 added), fixres (384 px, crop 0.875). Without it: as the run of the checkpoint validated, or by
                 data.val_image_size, data.val_crop_ratio, data.val_interpolation and model.val_flip
  trainer.precision=NAME   of the network; without it that of the checkpoint's run, and 32-true for timm's weights
  --tta          also classify the mirror image, and use the mean of both (test-time augmentation)
  --per-class    print the accuracy of each class, the lowest first
  --json FILE    write all results

The folders of val may be some of the network's classes, as in ImageNet-A and ImageNet-R: only their logits are used. Or
they are class numbers, as in ImageNet-V2. Any override of train.py may be added, such as data.val_folder=valid or
data.val_image_size=288. Accuracies of different eval= are not comparable."""

_VIEW_KEYS = ("data.val_image_size", "data.val_crop_ratio", "data.val_interpolation")


def main(argv: list[str]) -> None:
    options = parse(argv)
    from imagenet_opt.config.compose import composed
    from imagenet_opt.config.dataset import check_folders, data_of

    typed = composed(options.overrides, partial(check_folders, splits=("val",)))
    import torch

    from imagenet_opt.config.build import plain, precision_of
    from imagenet_opt.display.progress import progress
    from imagenet_opt.display.terminal_table import print_sentence, print_tables
    from imagenet_opt.evaluate.evaluate import evaluate, tables
    from imagenet_opt.evaluate.network import view_of
    from imagenet_opt.run.record import add_evaluation

    model = plain(typed.model)
    network, ckpt = _network(model, options.ckpt)
    for word in options.overrides:
        key = "name" if key_of(word) == "model" else key_of(word).removeprefix("model.").partition(".")[0]
        if key_of(word).startswith("model") and network.recipe.get(key, model.get(key)) != model.get(key):
            raise ConfigError(
                f"{word} has no effect with ckpt=, whose network has model.{key}={network.recipe[key]}; leave it out"
            )
    config = composed((*network.overrides, *options.overrides))
    data = data_of(config)
    view = view_of(data.loading, options.convention, tta=options.tta, val_flip=config.model.val_flip)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = str(precision_of(config.trainer.precision, device))
    val = data.open("val")
    with progress("evaluating", "images") as show:
        result = evaluate(network, val, data.loading, view, precision=precision, on_progress=show)
    label = f"timm's {model['name']}" if ckpt is None else "/".join(Path(ckpt).absolute().parts[-2:])
    print_tables(tables(result, val.classes, label, view, by_class=options.per_class))
    found = {"eval": options.convention} | asdict(view) | asdict(result)
    facts = {"command": ["imagenet-opt", "evaluate", *argv], "ckpt": str(ckpt), **found, "classes": list(val.classes)}
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items())
    write_file(options.json, lambda: f"{{\n{lines}\n}}\n")
    if ckpt is not None and (sentence := add_evaluation(Path(ckpt), found, len(val))):
        print_sentence(sentence)


def _network(model: dict[str, Any], ckpt: Path | str | None) -> tuple["Network", str | None]:
    """timm's network of the group model, or the network of a checkpoint, and the path or URL of the checkpoint."""
    from imagenet_opt.evaluate.network import pretrained, saved
    from imagenet_opt.run.checkpoint.restore import local_checkpoint

    if ckpt is None:
        return pretrained(model["name"], model["options"]), None
    with local_checkpoint(ckpt) as (file, place):
        return saved(file), place


def parse(argv: list[str]) -> Namespace:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("evaluate")
    parser.add_argument("--tta", action="store_true")
    parser.add_argument("--per-class", action="store_true")
    parser.add_argument("--json", type=new_file)
    options = parser.parse_intermixed_args(argv)
    path, convention = (last_value(options.overrides, key) for key in ("ckpt", "eval"))
    if bool(path) == (last_value(options.overrides, "model.pretrained") == "true"):
        raise ConfigError("add ckpt=RUN_FOLDER or ckpt=FILE, or model.name=NAME model.pretrained=true")
    options.overrides = tuple(without(options.overrides, "ckpt", "eval"))
    if convention is not None and (words := [word for word in options.overrides if key_of(word) in _VIEW_KEYS]):
        raise ConfigError(f"eval={convention} and {words[0]} both set how images are cut out; leave one of them out")
    options.ckpt, options.convention = checkpoint_of(path) if path else None, convention
    return options

"""Checks that a record.json agrees with itself and with the run folder around it."""

import math
from collections.abc import Iterator
from pathlib import Path

from imagenet_opt.display.progress import duration
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.report.run_files import CONFIG
from imagenet_opt.run.checkpoint.names import LAST
from imagenet_opt.run.numbers import IMAGES_PER_SECOND, METRICS, read_rows
from imagenet_opt.run.record import RECORD, RunRecord, hash_of, hash_of_recipes, read_record

_VERSIONS = ("python", "imagenet-opt", "torch", "lightning", "timm")
_LEAST, _MOST, _START_SECONDS = 0.95, 2.0, 1800.0
"""A start takes at least _LEAST times the seconds of its images at the rate of the run. It takes at most _MOST times
these seconds, with its validations, and _START_SECONDS for importing, compiling and the end."""


def verify(place: Path) -> tuple[str, list[str]]:
    """Check the record of a run folder, or a record alone. Returns a sentence about the run, and what was not compared.

    A record that passes is consistent: nobody can tell from it alone that the run took place. Raises ConfigError, which
    names all fields that contradict another field or file.
    """
    file = place / RECORD if place.is_dir() else place
    record, folder = read_record(file), file.parent
    absent: list[str] = []
    wrong = [*_sums(record), *_rate(record), *_accuracy(record), *_files(record, folder, absent)]
    if wrong:
        raise ConfigError(f"{file} contradicts itself or its run: {'; '.join(wrong)}")
    return f"{file} is consistent: {_facts(record)}.", absent


def _facts(record: RunRecord) -> str:
    rate = record.numbers.get(IMAGES_PER_SECOND)
    parts = [
        f"experiment={record.experiment}" if record.experiment else "no experiment",
        f"{record.epochs:.4g} epochs of {record.train_images:,} images in {record.hours:.2f} hours on {record.device}",
        f"{record.num_gpus} GPUs" if record.num_gpus > 1 else "",
        f"{rate:,.0f} images/s" if rate else "no rate",
        "no price" if record.dollars is None else f"${record.dollars:,.2f}",
    ]
    if (found := record.evaluation) is None:
        parts.append("not evaluated (imagenet-opt evaluate ckpt=RUN)")
    else:
        view = f"eval={found.eval}" if found.eval else f"{found.image_size} px, crop {found.crop_ratio:.3g}"
        view += ", with the mirror image" if found.tta and not found.eval else ""
        parts.append(f"top-1 {found.top1:.2%} of {sum(found.images):,} images ({view})")
    return ", ".join(filter(None, parts))


def _sums(record: RunRecord) -> Iterator[str]:
    """What follows from other fields."""
    expected = {
        "samples": (record.samples, record.steps * record.global_batch, "steps times global_batch"),
        "epochs": (record.epochs, record.samples / record.train_images, "samples over train_images"),
        "hours": (record.hours, sum(seconds for _, seconds in record.starts) / 3600, "the seconds of starts"),
        "numbers.steps": (record.numbers.get("steps", math.nan), record.steps, "steps"),
    }
    if record.price_per_hour is not None:
        dollars = record.price_per_hour * record.num_machines * record.hours
        expected["dollars"] = (record.dollars or 0.0, dollars, "price_per_hour, num_machines and hours")
    elif record.dollars is not None:
        yield f"dollars is {record.dollars:g} without a price_per_hour"
    for field, (found, number, source) in expected.items():
        if not math.isclose(found, number, rel_tol=1e-3, abs_tol=1e-6):
            yield f"{field} is {found:g}, and {source} give {number:g}"
    if absent := [name for name in _VERSIONS if not record.versions.get(name)]:
        yield f"versions lacks {', '.join(absent)}"
    begins = [step for step, _ in record.starts]
    if begins[:1] != [0] or begins != sorted(begins) or begins[-1] > record.steps:
        yield f"starts begin at {begins[:9]}, expected rising steps from 0 to {record.steps}"


def _rate(record: RunRecord) -> Iterator[str]:
    """Images/s against the hours. The rate of a run is that of its last start."""
    rate, (begin, seconds) = record.numbers.get(IMAGES_PER_SECOND), (record.starts or [(0, 0.0)])[-1]
    if rate is None or (num_images := (record.steps - begin) * record.global_batch) <= 0:
        return
    needed = num_images / rate if rate > 0 else math.inf
    if not _LEAST * needed <= seconds <= _MOST * needed + _START_SECONDS:
        yield (
            f"numbers.{IMAGES_PER_SECOND} is {rate:g}, at which the {num_images:,} images of the last start take "
            f"{duration(min(needed, 1e9))}, and hours says {duration(seconds)} for this start"
        )


def _accuracy(record: RunRecord) -> Iterator[str]:
    if (found := record.evaluation) is None:
        return
    total = sum(found.images)
    fits = len(found.correct) == len(found.images) and all(map(int.__le__, found.correct, found.images))
    if not fits or not 0.99 * record.val_images <= total <= record.val_images or not total:
        yield f"evaluation.images and correct do not fit the {record.val_images:,} val_images"
    elif not math.isclose(found.top1, sum(found.correct) / total, abs_tol=1e-9):
        yield f"evaluation.top1 is {found.top1:.4f}, and correct over images give {sum(found.correct) / total:.4f}"
    elif found.top5 is not None and found.top5 < found.top1:
        yield f"evaluation.top5 is {found.top5:.4f}, below top1"


def _files(record: RunRecord, folder: Path, absent: list[str]) -> Iterator[str]:
    """Fields against the files of the run; files that are not there become lines of `absent`."""
    if not (folder / CONFIG).is_file():
        absent.append(f"config_sha256: no {CONFIG}")
    elif hash_of(folder / CONFIG) != record.config_sha256:
        yield f"config_sha256 is not that of {CONFIG}"
    scores = [row["val/acc1"] for _, row in read_rows(folder / METRICS) if "val/acc1" in row]
    for key, known in (("val/acc1", scores[-1:]), ("best/val/acc1", scores)):
        if (score := record.numbers.get(key)) is None:
            continue
        if not known:
            absent.append(f"numbers.{key}: no validation in {METRICS}")
        elif not any(math.isclose(score, each, abs_tol=1e-6) for each in known):
            yield f"numbers.{key} is {score:.4f}, and {METRICS} has {max(known):.4f}"
    yield from _checkpoints(record, folder, absent)


def _checkpoints(record: RunRecord, folder: Path, absent: list[str]) -> Iterator[str]:
    from imagenet_opt.run.checkpoint import files  # imports torch

    if (found := record.evaluation) is not None:
        if Path(found.checkpoint).name != found.checkpoint:
            yield "evaluation.checkpoint is no name of a file"
        elif not (folder / found.checkpoint).is_file():
            absent.append(f"evaluation.sha256: no {found.checkpoint}")
        elif hash_of(folder / found.checkpoint) != found.sha256:
            yield f"evaluation.sha256 is not that of {found.checkpoint}"
    if not (folder / LAST).is_file():
        absent.append(f"recipe_sha256: no {LAST}")
        return
    try:
        saved = files.load(folder / LAST, "ckpt")
    except ImagenetOptError as error:
        yield f"recipe_sha256: {error}"
        return
    if hash_of_recipes(saved.get("recipes", {})) != record.recipe_sha256:
        yield f"recipe_sha256 is not that of {LAST}"
    if saved.get("global_step") != record.steps:
        yield f"steps is {record.steps}, and {LAST} has {saved.get('global_step')}"

"""Requests for small studies."""

from pathlib import Path
from typing import Any

from imagenet_opt.study.request import Request, read_study


def small_request(name: str, folder: Path, *overrides: str, seconds: float = 0.1, **options: Any) -> Request:
    """The shipped study of that name with these `options` in the place of its own, two rounds."""
    _, file = read_study(name)
    return Request(
        name=name,
        title=file.title,
        kind=file.kind,
        options=(file.model_extra or {}) | options,
        overrides=overrides,
        repeats=2,
        seconds=seconds,
        parity_steps=0,
        price_per_hour=None,
        folder=folder,
    )


def speed(compute: float, full: float, **more: float) -> dict[str, float | None]:
    """A turn of a study of steps; by default on a CPU."""
    facts: dict[str, float | None] = {"busy": 0.5, "memory_gib": 2.0, "compile_seconds": None, "batch_size": 64.0}
    return facts | {"compute": compute, "full": full, "step_seconds": None, "kernel_seconds": None} | more


TINY = ("data=demo", "model.name=resnet10t", "data.batch_size=4", "data.image_size=32", "trainer.precision=32-true")
TINY += ("logger=csv",)
"""A network and a batch that a CPU computes at once."""

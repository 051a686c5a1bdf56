"""Requests for small studies."""

from pathlib import Path
from typing import Any

from imagenet_opt.cli.study import tables_of
from imagenet_opt.display.table import Table
from imagenet_opt.study.plan import Request, read_study


def small_request(
    name: str, folder: Path, *overrides: str, seconds: float = 0.1, repeats: int = 2, **options: Any
) -> Request:
    """The shipped study of that name with these `options` in the place of its own."""
    file = read_study(name)
    return Request(
        name=name,
        title=file.title,
        kind=file.kind,
        options=(file.model_extra or {}) | options,
        overrides=overrides,
        repeats=repeats,
        seconds=seconds,
        parity_steps=0,
        folder=folder,
    )


def table_of(name: str, folder: Path, *overrides: str, **options: Any) -> Table:
    """The table of a study of one question; arguments as for `small_request`."""
    (table,) = tables_of(small_request(name, folder, *overrides, **options))
    return table


TINY = ("data=demo", "model.name=resnet10t", "data.batch_size=4", "data.image_size=32", "trainer.precision=32-true")
TINY += ("logger=csv",)
"""A network and a batch that a CPU computes at once."""

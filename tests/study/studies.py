"""Small studies."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.study.file import Request, read_study
from imagenet_opt.study.plan import Study, StudyPlan

Words = tuple[str, ...]
TINY = ("data=demo", "model.name=resnet10t", "data.batch_size=4", "data.image_size=32", "trainer.precision=32-true")
TINY += ("logger=csv",)
"""A network and a batch that a CPU computes at once."""


def small_request(
    name: str, folder: Path, *overrides: str, seconds: float = 0.1, repeats: int = 2, **options: Any
) -> Request:
    """The shipped study of that name with these `options` in the place of its own."""
    file = read_study(name)
    return Request(
        name=name,
        file=type(file).model_validate(file.model_dump() | options),
        overrides=overrides,
        repeats=repeats,
        seconds=seconds,
        parity_steps=0,
        folder=folder,
    )


def steps_study(folder: Path, steps: list[dict[str, Any]], *words: str, start: Any = (), **fields: Any) -> Study:
    """A ladder before its measurements. words: overrides. fields: of the Request."""
    options: dict[str, Any] = {
        "order": "cumulative",
        "start": start if start == "plain" else list(start),
        "steps": steps,
    }
    request = replace(small_request("ladder", folder, *TINY, *words, **options), **fields)
    plan = StudyPlan(request.file, request.overrides, batch_size=4, has_gpu=True, mixed="bf16-mixed")
    return Study(plan, request, plan.rows(), cold=False)


def cache_of(study: Study) -> ResultCache:
    return ResultCache(study.request.folder, [study.plan.words(step) for step in study.plan.file.steps])

"""The table that `imagenet-opt plan` prints."""

from collections.abc import Iterator, Sequence

from imagenet_opt.display.table import Column, Table
from imagenet_opt.plan.plan import A10G_RATE, Plan

_COLUMNS = (
    Column("epochs"),
    Column("image size", "{:.0f}"),
    Column("steps", "{:,.0f}"),
    Column("images/s needed", "{:,.0f}"),
    Column("loader", "{:,.0f}"),
    Column("hours"),
    Column("limit"),
)


def table(
    plan: Plan, *, is_estimate: bool, about_loader: str, price: float | None = None, changed: Sequence[str] = ()
) -> Table:
    """The phases of the plan, and sentences about the run. is_estimate: whether the GPU's rate is the estimate for an
    A10G. about_loader: how the loader's rates are known, or why they are unknown. price: dollars. changed: keys of the
    recipe that the command line changes."""
    rows = []
    for phase in plan.phases:
        first, last = phase.first_epoch + 1, phase.first_epoch + phase.num_epochs
        epochs = str(first) if first == last else f"{first} to {last}"
        rates = (phase.images_per_second_needed, phase.images_per_second_loaded)
        limit = "loader" if phase.waits_for_loader else "GPU"
        rows.append((epochs, float(phase.image_size), float(phase.steps), *rates, _time(phase.hours), limit))
    finding = (
        f"{plan.total_steps:,} steps, {_time(plan.gpu_hours)} on one GPU, of which {_time(plan.validation_hours)} for "
        f"validation{'' if price is None else f': ${price:,.2f}'}."
    )
    notes = (*_notes(plan, is_estimate, about_loader), *_published(plan, changed))
    return Table("The run", _COLUMNS, tuple(rows), notes, finding=finding)


def _notes(plan: Plan, is_estimate: bool, about_loader: str) -> Iterator[str]:
    for num in sorted({plan.num_gpus, plan.recipe.get("gpus") or 1} - {1}):
        yield f"{_time(plan.gpu_hours / num)} on {num} GPUs, if they scale perfectly and the loader does too."
    top = max(range(len(plan.lr)), key=plan.lr.__getitem__)
    epochs = sorted({0, top, len(plan.lr) - 1})
    yield f"Learning rate: {', '.join(f'{plan.lr[epoch]:.3g} in epoch {epoch + 1}' for epoch in epochs)}."
    if is_estimate:
        yield (
            f"The GPU's rate is an estimate for an A10G ({A10G_RATE:.0f} images/s of ResNet-50 at 224 px, compiled; "
            "others in proportion to FLOPs); --rate sets the rate of this network on your GPU at 224 px."
        )
    yield about_loader
    if any(phase.waits_for_loader for phase in plan.phases):
        yield (
            "Where the loader is the limit: add CPUs, or pack smaller images (imagenet-opt pack for=224; for=176 for "
            "FFCV's ResNet-18). imagenet-opt doctor measures what limits it."
        )


def _published(plan: Plan, changed: Sequence[str]) -> Iterator[str]:
    if not (recipe := plan.recipe):
        return
    how = f"this run changes {', '.join(changed)}" if changed else f"imagenet-opt evaluate eval={recipe['evaluation']}"
    if recipe["published_top1"] is None:
        yield f"Published top-1: none for these epochs, only for {', '.join(map(str, recipe['published']))}."
    else:
        yield f"Published top-1: {recipe['published_top1']} % ({how}), seed noise {recipe['sigma']} %."
    yield f"Reproduced here: {recipe['reproduced'] or 'no'}. GPUs of the source: {recipe.get('gpus') or 'not known'}."
    yield f"Source: {recipe['source']}"
    yield from (f"Deviation {number}: {deviation}" for number, deviation in enumerate(recipe["deviations"], 1))


def _time(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 0.1 or hours == 0 else f"{hours * 60:.2g} minutes"

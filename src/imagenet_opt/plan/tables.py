"""The tables that `imagenet-opt plan` prints."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from imagenet_opt.display.progress import size
from imagenet_opt.display.table import Column, Table
from imagenet_opt.measure.storage.request_price import DOLLARS_PER_1000_GETS, dollars, price_of_gets
from imagenet_opt.plan.loader_rates import LoaderRates
from imagenet_opt.plan.packs import PackedRun
from imagenet_opt.plan.plan import A10G_RATE, LoaderRate, Plan, limits
from imagenet_opt.plan.requests import EpochRequests


def tables(
    plan: Plan,
    *,
    is_estimate: bool,
    about_loader: str,
    loader_rates: Mapping[int, LoaderRate] = MappingProxyType({}),
    packed: Sequence[PackedRun] = (),
    price_per_hour: float | None = None,
    watts: float | None = None,
    changed: Sequence[str] = (),
) -> list[Table]:
    """Tables of the plan. is_estimate: whether the GPU's rate is the estimate for an A10G. about_loader: how the
    loader's rates are known, or why they are unknown. loader_rates: as for `make_plan`. price_per_hour: dollars.
    watts: of the GPU while it trains. changed: keys of the recipe that the command line changes."""
    columns = (
        Column("epochs"),
        Column("image size", "{:.0f}"),
        Column("steps", "{:,.0f}"),
        Column("images/s needed", "{:,.0f}"),
        Column("loader", "{:,.0f}"),
        Column("one epoch"),
        Column("all epochs"),
        Column("limit"),
    )
    rows = []
    for phase, limit in zip(plan.phases, limits(plan, loader_rates), strict=True):
        first, last = phase.first_epoch + 1, phase.first_epoch + phase.num_epochs
        epochs = str(first) if first == last else f"{first} to {last}"
        hours = (_time(phase.epoch_hours), _time(phase.hours))
        rates = (phase.images_per_second_needed, phase.images_per_second_loaded)
        rows.append((epochs, float(phase.image_size), float(phase.steps), *rates, *hours, limit))
    phases = Table("Phases", columns, tuple(rows), tuple(_notes(plan, is_estimate, about_loader, loader_rates)))
    facts = [("steps", f"{plan.total_steps:,}"), ("learning rate", _rates(plan.lr))]
    facts += [("time on one GPU", f"{_time(plan.gpu_hours)}, of which {_time(plan.validation_hours)} for validation")]
    facts += [
        (f"time on {num} GPUs", f"{_time(plan.gpu_hours / num)}, if they scale perfectly and the loader does too")
        for num in sorted({plan.num_gpus, plan.recipe.get("gpus") or 1} - {1})
    ]
    if plan.memory_gib is not None:
        facts += [("memory of a step", f"{plan.memory_gib:.1f} GiB for its tensors")]
    if price_per_hour is not None:
        facts += [("price", f"${plan.gpu_hours * price_per_hour:,.2f}")]
    if watts is not None:
        facts += [("energy of the GPU", f"{plan.gpu_hours * watts / 1000:,.1f} kWh at {watts:g} W")]
    facts += list(_published(plan.recipe, changed))
    run = Table("The run", (Column("fact"), Column("value")), tuple(facts))
    return [run, phases, _packs(packed)] if packed else [run, phases]


def requests_table(url: str, first: EpochRequests, later: EpochRequests, num_epochs: int) -> Table:
    """The requests of a run that reads from `url`, and their price."""
    columns = (
        Column("epoch"),
        Column("GET requests", "{:,.0f}"),
        Column("GB read", "{:,.2f}"),
        Column("% from the cache", "{:.0f}"),
        Column("price of the requests"),
    )
    rows = tuple(
        (name, each.requests, each.num_bytes / 1e9, each.cached_percent, dollars(price_of_gets(each.requests)))
        for name, each in (("first", first), ("each later", later))
    )
    price = price_of_gets(first.requests + (num_epochs - 1) * later.requests)
    notes = (
        f"{dollars(price)} for the requests of all {num_epochs} epochs, at ${DOLLARS_PER_1000_GETS} per 1000 GET "
        "requests (S3 Standard, us-east-1). Traffic is not included; it costs nothing within a region of AWS.",
        "data.cache_gb and the disk of data.cache_dir limit the cache. The first epoch reads from the storage what the "
        "cache does not hold yet, later epochs what the cache has no room for.",
    )
    return Table(f"Requests to {url}", columns, rows, notes)


def _packs(packed: Sequence[PackedRun]) -> Table:
    columns = (
        Column("imagenet-opt pack"),
        Column("GB", "{:,.1f}"),
        Column("loader speedup", "{:.2f}"),
        Column("time of the run"),
    )
    rows = ((*run[:-1], _time(run.gpu_hours)) for run in packed)
    note = (
        "Measured with some images, packed and decoded in memory: valid if the CPUs limit the loader, not the storage. "
        "docs/packing.md lists published accuracies with smaller images."
    )
    return Table("With the data packed smaller", columns, tuple(rows), (note,))


def _time(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 0.1 or hours == 0 else f"{hours * 60:.2g} minutes"


def _rates(lr: tuple[float, ...]) -> str:
    top = max(range(len(lr)), key=lr.__getitem__)
    return ", ".join(f"{lr[epoch]:.3g} in epoch {epoch + 1}" for epoch in sorted({0, top, len(lr) - 1}))


def _notes(plan: Plan, is_estimate: bool, about_loader: str, loader_rates: Mapping[int, LoaderRate]) -> Iterator[str]:
    if is_estimate:
        yield (
            f"The GPU's rate is an estimate for an A10G ({A10G_RATE:.0f} images/s of ResNet-50 at 224 px, compiled; "
            "others in proportion to FLOPs); --rate sets the rate of this network on your GPU at 224 px."
        )
        if not plan.compiles:
            yield (
                "This run is not compiled (callbacks.acceleration.compile), so it takes longer: on an H100, 1.39 times "
                "as long in bfloat16."
            )
    yield about_loader
    found = limits(plan, loader_rates)
    if "storage" in found:
        yield (
            "Where the storage is the limit: fill the cache before the run (imagenet-opt hydrate), and give it room "
            "for all data (data.cache_gb); packed data with data.shuffle=block needs fewer requests."
        )
    if "loader" in found:
        yield (
            "Where the loader is the limit: add CPUs, or pack smaller images (imagenet-opt pack for=224; for=176 for "
            "FFCV's ResNet-18)."
        )


def about_measured_rates(rates: LoaderRates, seconds: float, *, of_url: bool) -> str:
    """How the rates of the loader were measured. seconds: of a measurement. of_url: whether the data is below a URL."""
    how = f"alone on this machine, for {seconds:.0f} s a size, with data.num_workers={rates.num_workers}"
    if not of_url:
        return f"The loader was measured {how} and files that were not in memory."
    each = ", ".join(f"{_both(rate)} at {pixels} px" for pixels, rate in rates.by_size.items())
    kept = f", of which {size(rates.kept_bytes)} stay in the cache" if rates.kept_bytes else ""
    return (
        f"The loader was measured {how}, in images/s: {each}. If the cache holds a part of an epoch, the times of "
        f"both parts add up. The measurement read {size(int(rates.num_bytes))} with about {rates.requests:,.0f} "
        f"GET requests ({dollars(price_of_gets(rates.requests))}){kept}; --loader-rate R saves it."
    )


def _both(rate: LoaderRate) -> str:
    if rate.cached is None:
        return f"{rate.storage:,.0f} from the storage, without a cache,"
    return f"{rate.storage:,.0f} from the storage and {rate.cached:,.0f} from the cache"


def _published(recipe: dict[str, Any], changed: Sequence[str]) -> Iterator[tuple[str, str]]:
    if not recipe:
        return
    how = f"this run changes {', '.join(changed)}" if changed else f"imagenet-opt evaluate eval={recipe['evaluation']}"
    if recipe["published_top1"] is None:
        yield "published top-1", f"none for these epochs, only for {', '.join(map(str, recipe['published']))}"
    else:
        yield "published top-1", f"{recipe['published_top1']} % ({how})"
    yield "seed noise", f"{recipe['sigma']} % (one standard deviation)"
    yield "reproduced here", str(recipe["reproduced"] or "no")
    yield "source", str(recipe["source"])
    yield "GPUs of the source", str(recipe.get("gpus") or "not known")
    for number, deviation in enumerate(recipe["deviations"], 1):
        yield f"deviation {number}", deviation

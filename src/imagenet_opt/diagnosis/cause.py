"""The causes of a slow loop: what each remedy would gain, as an interval; the largest gain names the cause."""

from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from imagenet_opt.diagnosis.measurements import Measurements, Parts, Trial
from imagenet_opt.diagnosis.verdict import MEANINGS, Diagnosis
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.verdict import LEAST_GAIN, nearly

_EXPLAINED = 0.5  # share of the loader's time that the times of its workers must explain
_BALANCED = 1.1  # a loader that is less than so many times as fast as the step is the next limit
_UNDECIDED = 1.5  # times its step that a loop takes at least, if no experiment explains that
_WIDEST = 1.5  # the scatter of the loop widens an interval at most so many times at each end
_SLICE = 0.003
"""Seconds that Linux lets a thread compute before others may (base_slice_ns of EEVDF): a worker that computes for less
queues for each of its wake-ups, however little it computes; one that computes for longer queues as long as it computes.
"""
_MANY_LEAVES = 64  # more tensors and objects than this in a batch are a matter of joining samples, not of bytes
_SHORT_OPERATION = 100e-6  # seconds; operations that take less on average cost mostly their launch
_LEAST_OPERATIONS = 50
_LARGE_IMAGES = 16  # decoded pixels for each pixel in the batch
_LEAST_SAVED = {"storage": 0.8, "decode": 1 / 3, "collate": 1 / 3, "copy": 0.5, "host_sync": 1 / 3, "launches": 1 / 3}
"""Least share of its part that a remedy saves; the largest is all of it. Our choice: files on a local disk hardly wait;
a faster decoder saves a third; uint8 for float32 saves three quarters of a copy."""
_REMEDIES = {
    "storage": "keep more reads in flight (more workers, imagenet_opt.loader), or copy the data to a local disk, "
    "packed into a few large files (imagenet-opt pack)",
    "collate": "join samples by default_collate or torch.stack: one tensor for each field, not lists of objects",
    "copy": "send smaller batches: uint8 images, which are normalised on the device",
    "host_sync": "keep the value on the GPU, x.detach() instead of x.item(), and read it every 50 steps",
    "launches": "launch fewer operations: a larger batch, torch.compile, CUDA graphs",
}


class Candidate(NamedTuple):
    """A cause with the limits of its gain. rank: the measured gain of a remedy that was tried, else the lower limit."""

    cause: str
    low: float
    high: float
    rank: float
    evidence: tuple[str, ...]
    remedy: str
    settings: dict[str, Any] | None = None


def conclude(measured: Measurements, ended: str, error: type[ImagenetOptError], about: str) -> Diagnosis:
    """The diagnosis after experiments that may have ended early. ended: why; "" if they did not, or for a reason that
    is known already. Raises `error`, which begins with `about`, if too little was measured."""
    measured.ended = measured.ended or ended
    if measured.is_enough:
        return judge(measured)
    has_batches = "" if measured.starts else ". Expected an iterable of batches, and a step that takes each of them"
    raise error(
        f"{about}{measured.ended or 'too few batches'}; measured until then: {len(measured.starts)} epochs begun, "
        f"{len(measured.loop)} of at least 2 rounds ({measured.kind}){has_batches}"
    )


def judge(measured: Measurements) -> Diagnosis:
    """The cause with the largest gain; without one, whether the step is the limit."""
    found = [each for each in _candidates(measured) if each.rank >= LEAST_GAIN]
    best = _largest(found, measured)
    cause = best.cause if best else _without_cause(measured)
    loader, step = median(measured.drained), measured.step
    speeds = (
        f"a batch takes {_ms(measured.seconds)} in the loop, {_ms(step)} in the step, {_ms(loader)} in the loader alone"
    )
    rate, kind, gain = 1 / measured.seconds, MEANINGS[cause][0], (1.0, 1.0)
    if best is None:
        limit = "the step is the limit" if cause == "training" else "no remedy brings much"
        sentence = f"{kind}: {rate:.2f} batches/s, {limit}; the loader alone gives {1 / loader:.2f}."
        if measured.slowdown >= _UNDECIDED:
            sentence = (
                f"Undecided: {rate:.2f} batches/s, {1 / step:.2f} in the step alone; take more time on a quiet machine."
            )
    else:
        gain = max(1.0, best.low / LEAST_GAIN), best.high * LEAST_GAIN  # runs of one loop differ by so much
        low, high = (f"{rate * limit:.2f}" for limit in gain)
        sentence = f"{kind}: {rate:.2f} of a possible {low} to {high} batches/s."
    return Diagnosis(
        cause=cause,
        gain=gain,
        remedy=best.remedy if best else "",
        evidence=(*(best.evidence if best else ()), speeds),
        unknown=tuple(_unknown(measured, best)),
        sentence=sentence,
        settings=best.settings if best else None,
        measured=measured,
    )


def _largest(found: list[Candidate], measured: Measurements) -> Candidate | None:
    """Of nearly equal gains a tried remedy is the simplest; of remedies that were not tried the one that may gain most
    is named."""
    parts = measured.mean_parts
    if parts.waiting > parts.cpu and any(each.cause == "storage" for each in found):  # more workers only hide the waits
        found = [each for each in found if "num_workers" not in (each.settings or {})]
    least = nearly(measured.scatter[0]) * max((each.rank for each in found), default=0.0)
    near = [each for each in found if each.rank >= least]
    tried = [each for each in near if each.settings is not None]
    return max(tried or near, key=lambda each: each.rank if tried else each.high, default=None)


def _without_cause(measured: Measurements) -> str:
    is_next = bool(measured.num_workers) and measured.step < _BALANCED * median(measured.drained)
    return "none" if is_next or measured.is_held_up or measured.slowdown >= _UNDECIDED else "training"


def _candidates(measured: Measurements) -> Iterator[Candidate]:
    yield from _tried(measured)
    yield from _of_step(measured)
    if not measured.is_held_up:
        return
    parts, received = _parts(measured), measured.received
    many = measured.num_leaves > _MANY_LEAVES
    sent = f"a worker takes {_ms(parts.sending)} to send a batch, the training process {_ms(received)} to receive it: "
    sent += f"{measured.num_leaves} tensors and objects, {measured.batch_bytes / 1e6:.1f} MB"
    joined = f"a worker takes {_ms(parts.collating)} to join {measured.num_samples:.0f} samples to a batch"
    waits, computes, collates, sends = {"waiting"}, {"computing"}, {"collating"}, {"sending"}
    yield _untried(measured, "storage", waits, 0.0, _waits_say(measured, parts), _REMEDIES["storage"])
    yield _untried(measured, "decode", computes, 0.0, _computing_says(measured, parts), _decode_remedy(measured))
    collates |= sends if many else set()
    yield _untried(measured, "collate", collates, many * received, (joined, sent), _REMEDIES["collate"])
    if not many:
        yield _untried(measured, "copy", sends, received, (sent,), _REMEDIES["copy"])


def _parts(measured: Measurements) -> Parts:
    """Of a loader that is no DataLoader, the waiting and computing of all its threads and processes."""
    if measured.parts:
        return measured.mean_parts
    seconds, busy = median(measured.drained), min(1.0, measured.loader_cpus)
    queued = min(1 - busy, measured.loader_queued) if busy * seconds > _SLICE else 0.0
    return Parts(waiting=seconds * (1 - busy - queued), computing=seconds * busy, queued=seconds * queued)


def _untried(
    measured: Measurements, cause: str, slow: set[str], received: float, evidence: tuple[str, ...], remedy: str
) -> Candidate:
    """A remedy for the parts `slow` of the loader, and for `received` seconds of the time to receive a batch.

    The lower limit of its gain: it saves the least share of these parts, and nothing else changes. The upper limit: it
    saves all of them, and nobody waits for a CPU any more. Its rank: it saves the least share of them, of the waits for
    a CPU that they cause, and of what they slow the step down.
    """
    parts, workers, share = _parts(measured), measured.num_workers or 1, _LEAST_SAVED[cause]
    own = sum(getattr(parts, name) for name in slow)
    own_cpu = own if own > _SLICE and "waiting" not in slow else 0.0
    queued = parts.queued * own_cpu / parts.cpu if own_cpu else 0.0
    slowed = (measured.in_loop - measured.step) * (own_cpu + queued) / (parts.total - parts.waiting or 1.0)
    load = _load(measured, parts)
    scale = min(1 / workers, load / parts.total if parts.total else 0.0)
    low, rank = (
        _loop(measured, measured.in_loop - slower + measured.received - share * received, load - share * saved * scale)
        for saved, slower in ((own, 0.0), (own + queued, share * slowed))
    )
    best = _loop(measured, measured.step, (parts.total - parts.queued - own) / workers)
    now, scatter = measured.seconds, min(_WIDEST, measured.scatter[1])
    high = max(now / best, now / low) * scatter
    return Candidate(cause, max(1.0, now / low / scatter), high, now / rank, evidence, remedy)


def _load(measured: Measurements, parts: Parts) -> float:
    """Seconds per batch that the loader needs in the loop."""
    if not _is_overlapped(measured):
        return max(0.0, measured.steady - measured.in_loop)
    if measured.steady > 1.03 * (measured.in_loop + measured.received):
        return measured.steady
    return parts.total / (measured.num_workers or 1)


def _loop(measured: Measurements, step: float, load: float) -> float:
    """Seconds per batch of a loop with this step and this loader."""
    return (max(step, load) if _is_overlapped(measured) else step + max(0.0, load)) + measured.start


def _is_overlapped(measured: Measurements) -> bool:
    """Whether batches are made while the step runs."""
    if measured.num_workers is not None:
        return measured.num_workers > 0
    return measured.steady < measured.step + median(measured.drained) / 2


def _tried(measured: Measurements) -> Iterator[Candidate]:
    for trial in measured.trials:
        if len(trial.after) < 2 or not trial.settings or trial.gain.low <= 1:
            continue
        cause, words, says = "few_workers", trial.name, [_trial_says(trial)]
        if "persistent_workers" in trial.settings:
            says.append(
                f"the workers start anew in each epoch of {measured.batches} batches, which takes "
                f"{median(measured.starts):.2f} s"
            )
        elif trial.settings.get("num_workers"):
            words += "" if measured.persistent_workers else ", persistent_workers=True"
            curve = ", ".join(f"{num}: {1 / seconds:.1f}" for num, seconds in sorted(measured.workers.items()))
            says += [_workers(measured), f"batches/s of the loader alone by workers: {curve}"]
        elif "pin_memory" in trial.settings:
            cause, words = "copy", f"{words}), and batch.to(device, non_blocking=True"
        gain = trial.gain
        yield Candidate(
            cause, gain.low, gain.high, gain.ratio, tuple(says), f"DataLoader(..., {words})", trial.settings
        )


def _of_step(measured: Measurements) -> Iterator[Candidate]:
    """Causes in the step: gaps between the kernels of a GPU; on a CPU, operations that cost mostly their launch."""
    step, busy = min(measured.on_device, default=measured.step), measured.kernel_seconds
    if measured.on_gpu and 0 < busy < step:
        waits = sum(measured.waits.values())
        cause = "host_sync" if waits >= 1 else "launches"
        saved = (share * (step - busy) for share in (_LEAST_SAVED[cause], 1.0))
        low, high = (measured.seconds / (measured.seconds - seconds) for seconds in saved)
        says = [f"the GPU computes {busy / step:.0%} of the step on a batch that stays on it"]
        if waits >= 1:
            says.append(f"{waits:.0f} waits for the GPU in each step: {', '.join(measured.waits)}")
        yield Candidate(cause, low, high, low, tuple(says), _REMEDIES[cause])
    trial, num = measured.trial("batch_size"), measured.num_ops
    is_short = num >= _LEAST_OPERATIONS and median(measured.step_cpu or measured.kept) < _SHORT_OPERATION * num
    if trial is not None and is_short and not measured.on_gpu and trial.gain.low > 1:
        says = [f"{_trial_says(trial)}, {trial.times:g} times as many samples"]
        says.append(f"{num:.0f} operations in a step, {1e6 * measured.step / num:.0f} us each")
        gain = trial.gain
        yield Candidate("launches", gain.low, gain.high, gain.ratio, tuple(says), _REMEDIES["launches"])


def _decode_remedy(measured: Measurements) -> str:
    if measured.pixels > _LARGE_IMAGES:
        return "store smaller images (imagenet-opt pack for=224), or decode them smaller (Image.draft)"
    if measured.lines and measured.decoding_share < 0.5:
        return "run the transforms for whole batches on the device, or with fewer operations in Python"
    return "a faster decoder, such as imagenet_opt.loader, which decodes only the crop; smaller images; or more CPUs"


# Words


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _trial_says(trial: Trial) -> str:
    before, after = (median(results) for results in (trial.before, trial.after))
    return f"tried: {_ms(before)} a batch as it is, {_ms(after)} with {trial.name}"


def _per_sample(measured: Measurements, seconds: float) -> str:
    return f"{_ms(seconds / measured.num_samples)} a sample" if measured.num_samples else f"{_ms(seconds)} a batch"


def _workers(measured: Measurements) -> str:
    if measured.num_workers is None:
        return f"{measured.kind} is no DataLoader of torch"
    return f"num_workers={measured.num_workers} on {measured.usable_cpus} usable CPUs"


def _waits_say(measured: Measurements, parts: Parts) -> tuple[str, ...]:
    share = parts.waiting / parts.total if parts.total else 0.0
    says = (
        f"{_per_sample(measured, parts.waiting)} is waiting, {share:.0%} of the loader's time: neither computing nor "
    )
    return (f"{says}in the queue for a CPU", _workers(measured))


def _computing_says(measured: Measurements, parts: Parts) -> tuple[str, ...]:
    says = [f"{_per_sample(measured, parts.computing)} is computing; {_workers(measured)}"]
    if total := sum(measured.lines.values()):
        most = sorted(measured.lines.items(), key=lambda line: -line[1])[:3]
        places = ", ".join(f"{place} {num / total:.0%}" for place, num in most)
        share = measured.decoding_share
        says.append(f"decoding takes {share:.0%} of it, transforms and other Python {1 - share:.0%}: {places}")
    if measured.pixels > _LARGE_IMAGES:
        says.append(f"{measured.pixels:.0f} pixels are decoded for each pixel in the batch")
    return tuple(says)


def _unknown(measured: Measurements, best: Candidate | None) -> Iterator[str]:
    if measured.ended:
        yield f"the experiments ended early: {measured.ended}"
    yield from (f"{name} could not be tried: {reason}" for name, reason in measured.failed.items())
    parts = measured.mean_parts
    explained = parts.total / (measured.num_workers or 1) / measured.steady
    if measured.is_held_up and measured.num_workers and explained < _EXPLAINED:
        yield f"the times of the workers explain only {explained:.0%} of the loop: other processes, or sending"
    if measured.slowdown >= LEAST_GAIN and best is None:
        why = "no experiment explains" if measured.is_held_up else "the rounds vary too much to explain"
        yield f"the loop takes {measured.slowdown:.2f} times as long as its step, and {why} that"
    if measured.is_held_up and measured.num_workers is None:
        yield "whether threads and processes of this loader wait or compute is judged by the sum of their CPU time"
    if not measured.sees_run_queue:
        yield "waits for a CPU count as waiting for storage: this system has no /proc/thread-self/schedstat"
    if measured.others_use_cpus:
        queued = parts.queued / parts.computing if parts.computing else 0.0
        yield (
            f"other processes use {measured.others_cpus:.1f} of {measured.usable_cpus} CPUs; a worker waits for a CPU "
            f"{queued:.1f} s for each second that it computes"
        )
    if measured.waits and not measured.on_gpu:
        yield f"host syncs cost nothing on a CPU; a GPU would wait at {', '.join(measured.waits)}"

"""What was measured of a loop. The rules of `cause.py` read nothing else."""

import math
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.intervals import CONFIDENCE
from imagenet_opt.measure.stats.verdict import LEAST_GAIN, Ratio, paired_ratios, student_interval
from imagenet_opt.measure.telemetry.proc_counters import OTHERS_SHARE

LEAST_SECONDS = 5.0
"""Of all experiments on a loop."""


def check_seconds(seconds: float, key: str = "seconds") -> None:
    """Raise ConfigError if the experiments cannot be made in this time."""
    if not isinstance(seconds, int | float) or not LEAST_SECONDS <= seconds < math.inf:
        raise ConfigError(f"{key}={seconds} must be a number of seconds, {LEAST_SECONDS:g} or more")


@dataclass(frozen=True)
class Parts:
    """Seconds of one worker for one batch.

    waiting: its samples waited, neither computing nor in the queue for a CPU. computing: its samples were computed.
    queued: samples or batch were ready for a CPU. collating: samples were joined to a batch. sending: it was pickled.
    """

    waiting: float = 0.0
    computing: float = 0.0
    queued: float = 0.0
    collating: float = 0.0
    sending: float = 0.0

    @property
    def total(self) -> float:
        return self.waiting + self.cpu + self.queued

    @property
    def cpu(self) -> float:
        """What the worker computed."""
        return self.computing + self.collating + self.sending

    @classmethod
    def mean(cls, parts: "list[Parts]") -> "Parts":
        return cls(*(fmean(getattr(part, name) for part in parts) for name in cls.__dataclass_fields__))


@dataclass
class Trial:
    """A remedy that was tried: seconds per batch in each round without and with it. settings: of the DataLoader; empty
    for another batch size. times: number of samples in a batch with the remedy / without. num_trials: of the loop; the
    more, the wider the interval."""

    name: str
    settings: dict[str, Any]
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    times: float = 1.0
    num_trials: int = 1

    @property
    def gain(self) -> Ratio:
        rates = {"after": [self.times / seconds for seconds in self.after], "before": [1 / s for s in self.before]}
        return paired_ratios(rates, [("after", "before")], num_comparisons=self.num_trials)[0]


@dataclass
class Measurements:
    """Seconds are those of one batch, one value for each round, and leave the start of an epoch out.

    kind: of the loader. num_workers: None if the loader is no DataLoader of torch. batches: of an epoch; None if they
    are not known. batch_bytes, num_leaves: of the first batch: bytes in tensors, and number of tensors and other
    objects. loop, body: the loop as it is, and its part outside of the loader. kept, step_cpu: the step on a batch that
    is kept, and what the main thread computed for it. drained: the loader alone. receiving: the main thread computed in
    the loader. starts: from the start of an epoch to its first batch, beyond those of an average batch. parts: of each
    batch of the loop. lines: CPU seconds of workers, by place in the code. decoding: those of them that decoded
    images. pixels: pixels decoded / pixels in the batch; 0 if that is unknown. workers: number of workers -> seconds of
    the loader alone. trials: the remedies that were tried. waits: host waits for the device in a step, by place.
    num_ops: of a step. kernel_seconds: in which a GPU computed in a step on the kept batch; 0 without a GPU. on_device:
    the step on a kept batch on the GPU. loader_cpus, loader_queued, others_cpus: CPUs that this program used while the
    loader ran alone, its threads that waited for a CPU then, and CPUs that other programs used.
    failed: experiment -> reason. ended: why the loop ended before the experiments did; "" if it did not.
    """

    kind: str = ""
    num_workers: int | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory: bool = False
    batches: int | None = None
    batch_bytes: int = 0
    num_leaves: int = 0
    usable_cpus: int = 1
    sees_run_queue: bool = True
    on_gpu: bool = False
    loop: list[float] = field(default_factory=list)
    body: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    step_cpu: list[float] = field(default_factory=list)
    drained: list[float] = field(default_factory=list)
    receiving: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    parts: list[Parts] = field(default_factory=list)
    num_samples: float = 0.0
    lines: dict[str, float] = field(default_factory=dict)
    decoding: float = 0.0
    pixels: float = 0.0
    workers: dict[int, float] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)
    num_ops: float = 0.0
    kernel_seconds: float = 0.0
    on_device: list[float] = field(default_factory=list)
    loader_cpus: float = 0.0
    loader_queued: float = 0.0
    others_cpus: float = 0.0
    failed: dict[str, str] = field(default_factory=dict)
    ended: str = ""

    @property
    def is_enough(self) -> bool:
        """Whether the loop can be judged."""
        return len(self.loop) >= 2 and len(self.kept) >= 2

    @property
    def step(self) -> float:
        return median(self.kept)

    @property
    def in_loop(self) -> float:
        """The part of the loop outside of the loader, where the loader's workers slow it down."""
        return max(self.step, median(self.body))

    @property
    def steady(self) -> float:
        """A batch of the loop, without the starts of epochs."""
        return median(self.loop)

    @property
    def start(self) -> float:
        """The share of a batch in the start of an epoch."""
        return median(self.starts) / self.batches if self.starts and self.batches else 0.0

    @property
    def seconds(self) -> float:
        return self.steady + self.start

    @property
    def slowdown(self) -> float:
        """The loop with its starts / the step alone."""
        return self.seconds / self.step if self.step else 1.0

    @property
    def mean_parts(self) -> Parts:
        return Parts.mean(self.parts) if self.parts else Parts()

    @property
    def headroom(self) -> Ratio:
        """The loop / the step alone: what a loader that takes no time would bring."""
        return self._in_steps(self.loop)

    def _in_steps(self, results: list[float]) -> Ratio:
        """These seconds / the step. The interval is that of the step's share in them, which varies little if the step
        takes no time."""
        shares = [step / seconds for step, seconds in zip(self.kept, results, strict=False)]
        middle, low, high = student_interval(shares, 1 - CONFIDENCE)
        return Ratio(1 / middle, 1 / high, 1 / low if low > 0 else math.inf, CONFIDENCE, len(shares))

    @property
    def scatter(self) -> tuple[float, float]:
        """Limits of the loop / its mean. What slows loop and step down alike does not count, unless the step is so
        short that its own scatter is larger."""
        ratio, own = self.headroom, student_interval([math.log(seconds) for seconds in self.loop], 1 - CONFIDENCE)
        of_loop, of_ratio = math.exp(own[2] - own[0]), ratio.high / ratio.ratio
        return 1 / min(of_loop, of_ratio), min(of_loop, of_ratio)

    @property
    def received(self) -> float:
        """Seconds in which the training process receives a batch from workers."""
        return median(self.receiving) if self.receiving and self.num_workers else 0.0

    @property
    def others_use_cpus(self) -> bool:
        """Whether other programs compute on the CPUs that the loader needs."""
        return self.others_cpus > OTHERS_SHARE * self.usable_cpus

    @property
    def decoding_share(self) -> float:
        """Share of the workers' computing in which they decode images."""
        return self.decoding / (sum(self.lines.values()) or 1)

    @property
    def is_held_up(self) -> bool:
        """Whether the loader slows the loop down, beyond the scatter: the loop is slower than the step, or the loader
        alone is."""
        surely = max(self._in_steps(results).low for results in (self.loop, self.drained))
        return self.headroom.ratio >= LEAST_GAIN and surely > 1

    @property
    def is_uneven(self) -> bool:
        """Whether the loop is slower than the slower one of step and loader alone, beyond the scatter."""
        slower = [max(pair) for pair in zip(self.kept, self.drained, strict=False)]
        ratio = paired_ratios({"loop": self.loop, "slower": slower}, [("loop", "slower")])[0]
        return ratio.ratio >= LEAST_GAIN and ratio.low > 1

    def trial(self, name: str) -> Trial | None:
        return next((trial for trial in self.trials if trial.name.startswith(name) and len(trial.after) > 1), None)

"""A diagnosis of a loop: cause, gain, remedy, evidence; in the words and the layout of the doctor."""

from dataclasses import asdict, dataclass
from io import StringIO
from os import PathLike
from pathlib import Path

from rich.console import Console
from rich.panel import Panel

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.diagnosis.measurements import Measurements
from imagenet_opt.display.terminal_table import strict_json, verdict_panel
from imagenet_opt.errors import ConfigError

FORMAT = 1
MEANINGS = {
    "storage": ("Storage-bound", "storage answers late, or gives too few MB/s"),
    "few_workers": ("Loader-bound", "the settings of the DataLoader's workers"),
    "copy": ("Copy-bound", "batches are sent too slowly to the training process or to the GPU"),
    "collate": ("Loader-bound", "samples are joined to batches too slowly"),
    "decode": ("CPU-bound", "decoding and transforms take the CPUs"),
    "host_sync": ("Host sync", "the host waits for the GPU in each step"),
    "launches": ("Launch-bound", "the host launches operations more slowly than the device computes them"),
    "training": ("Healthy", "the step is the limit"),
    "none": ("Balanced", "no remedy was found that makes the loop noticeably faster"),
}
"""Cause -> first words of the verdict, and the cause in a few words."""
HEALTHY = ("training", "none")


@dataclass(frozen=True)
class Diagnosis:
    """cause: a key of MEANINGS. gain: low and high limit of (rate after the remedy / rate now); (1, 1) without a cause.
    remedy: what to change; "" without a cause. settings: the remedy as arguments of the DataLoader, if it is one.
    evidence, unknown: sentences without a full stop, with the numbers; what could not be found out. sentence: the
    verdict. str() is the doctor's panel."""

    cause: str
    gain: tuple[float, float]
    remedy: str
    evidence: tuple[str, ...]
    unknown: tuple[str, ...]
    sentence: str
    measured: Measurements
    settings: dict[str, object] | None = None

    def to_json(self, path: str | PathLike[str]) -> None:
        """Write the verdict and all measurements. Raises ConfigError if the file cannot be written."""
        try:
            write_atomically(Path(path), self.as_json())
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}; choose another place") from error

    def as_json(self) -> str:
        return strict_json({"format": FORMAT, "verdict": self.sentence} | asdict(self))

    def panel(self) -> Panel:
        measured = self.measured
        rows = [("cause", MEANINGS[self.cause][1])]
        rows += [("" if number else "evidence", text) for number, text in enumerate(self.evidence)]
        rows += [("remedy", self.remedy)] if self.remedy else []
        rows.append(("measured", f"{1 / measured.seconds:.2f} batches/s; the step alone {1 / measured.step:.2f}"))
        if self.cause not in HEALTHY:
            low, high = self.gain
            tried = "tried" if self.settings is not None else "predicted"
            rows.append(("if fixed", f"{low:.2f} to {high:.2f} times as fast, {tried}"))
        rows += [("" if number else "unknown", text) for number, text in enumerate(self.unknown)]
        healthy = self.cause in HEALTHY
        return verdict_panel(self.sentence, rows, title=MEANINGS[self.cause][1], healthy=healthy)

    def __str__(self) -> str:
        text = StringIO()
        Console(file=text, width=110, markup=False, highlight=False, color_system=None).print(self.panel())
        return text.getvalue().rstrip("\n")

"""Measures named settings in rounds, and shows them in one table: rates with intervals, ratios with verdicts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

from omegaconf import OmegaConf
from pydantic import TypeAdapter

from imagenet_opt.compare.gain import Gain, gains
from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.compare.rounds import Rounds, in_rounds
from imagenet_opt.config.compose import composed
from imagenet_opt.display.table import RATIOS, Cell, Column, Plot, Table, interval, series, shape_of
from imagenet_opt.errors import ConfigError, ImagenetOptError, first_line
from imagenet_opt.measure.stats.intervals import Estimate, median_interval
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.study.file import Request

T = TypeVar("T")


@dataclass(frozen=True)
class ComparedSetting(Generic[T]):
    """labels: the first cells of its row. turn: measures it once. against: name of the setting to compare with."""

    labels: tuple[str, ...]
    turn: Callable[[], T]
    against: str | None = None


@dataclass(frozen=True)
class Comparison(Generic[T]):
    """Results of settings. A setting that failed in a round has no numbers.

    labels: headings of the settings' labels. rate: of one turn, in `unit`; more is better. ratio: name of the rate over
    the rate of the other setting. more: last columns, each with the cell for the turns of a setting.
    """

    title: str
    labels: tuple[str, ...]
    unit: str
    settings: Mapping[str, ComparedSetting[T]]
    rounds: Rounds[T]
    rate: Callable[[T], float] = float  # type: ignore[assignment]
    ratio: str = "ratio"
    more: Mapping[Column, Callable[[Sequence[T]], Cell]] = field(default_factory=dict)

    @cached_property
    def rates(self) -> dict[str, list[float]]:
        """Of each round."""
        return {name: list(map(self.rate, turns)) for name, turns in self.rounds.complete.items()}

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        return {name: median_interval(rates) for name, rates in self.rates.items()}

    @cached_property
    def gains(self) -> dict[str, Gain]:
        """Over the setting to compare with; all intervals hold at once."""
        pairs = [(name, setting.against) for name, setting in self.settings.items() if setting.against]
        pairs = [pair for pair in pairs if self.rates.keys() >= set(pair)]
        return {name: gain for (name, _), gain in gains(self.rates, pairs).items()}

    @property
    def shape(self) -> str:
        """Format of rates."""
        return shape_of(estimate.median for estimate in self.estimates.values())

    def _most(self) -> str:
        """A sentence about the fastest setting."""
        best = max(self.estimates, key=lambda name: self.estimates[name].median)
        text = f"Most {self.unit}: {best}, {self.shape.format(self.estimates[best].median)}"
        if gain := self.gains.get(best):
            text += f", {gain.ratio.ratio:.2f} times as much as {self.settings[best].against}: {gain.verdict}"
        return f"{text}."

    def table(self, *notes: str, finding: str | None = None, left_out: tuple[str, ...] = ()) -> Table:
        """finding: None for a sentence about the fastest setting."""
        columns = (
            *map(Column, self.labels),
            *(Column(self.unit, self.shape), Column(f"interval of {self.unit}"), Column("against")),
            *(Column(self.ratio, "{:.2f}"), Column(f"interval of {self.ratio}"), Column("verdict")),
            *self.more,
        )
        return Table(
            self.title,
            columns,
            tuple(map(self._row, self.settings)),
            (*self.rounds.reasons, RATIOS, *notes),
            (Plot(self.title, "", self.unit, "bars", (series("", self.estimates),)),),
            finding=self._most() if finding is None else finding,
            left_out=left_out,
        )

    def _row(self, name: str) -> tuple[Cell, ...]:
        setting = self.settings[name]
        if (estimate := self.estimates.get(name)) is None:
            return (*setting.labels, *[None] * (6 + len(self.more)))
        compared = (setting.against, *gain.cells[1:]) if (gain := self.gains.get(name)) else [None] * 4
        of_turns = [cell(self.rounds.results[name]) for cell in self.more.values()]
        return (*setting.labels, estimate.median, interval(estimate, self.shape), *compared, *of_turns)


def run_rounds(settings: Mapping[str, ComparedSetting[T]], request: Request, answer: type[T]) -> Rounds[T]:
    """Measure the settings in rounds; results that are stored in the study's folder are not measured again.

    answer: type of a turn's result, convertible to JSON. A turn with an error of this package or of torch counts as
    failed. Raises ConfigError if all have failed.
    """
    asked = (request.file.model_dump(), request.overrides, request.seconds)
    config = OmegaConf.to_container(composed(request.overrides))
    cache, adapter = ResultCache(request.folder, {"request": asked, "subject": config}), TypeAdapter(answer)

    def measured(name: str) -> Any:
        try:
            return adapter.dump_python(settings[name].turn(), mode="json")
        except (ImagenetOptError, RuntimeError) as error:  # of torch: out of memory, unsupported operations
            raise TurnFailed(first_line(error)) from error

    def turn(name: str, number: int) -> T:
        label = f"round {number + 1} of {request.num_rounds}: {name}"
        return adapter.validate_python(cache.take(_key_of_turn(name, number), lambda: measured(name), label))

    cache.report_resumed()
    turns = (_key_of_turn(name, number) for name in settings for number in range(request.num_rounds))
    with cache.measuring(cache.num_missing(turns)):
        rounds = in_rounds(settings, turn, range(request.num_rounds))
    if len(rounds.failures) == len(settings):
        raise ConfigError(f"study={request.name}: {rounds.reasons[0]}")
    return rounds


def _key_of_turn(name: str, number: int) -> dict[str, object]:
    """Identifies the stored result of a setting in round `number`."""
    return {"turn": name, "round": number}

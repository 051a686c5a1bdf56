"""Reading alone: workers x batch x requests in flight, files in memory and on storage, of a folder or of shards."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from imagenet_opt.cli.study_request import Request, checked_options
from imagenet_opt.cli.study_rounds import rounds_of
from imagenet_opt.config.compose import composed
from imagenet_opt.data.order import block_size_for
from imagenet_opt.data.reader import Reader
from imagenet_opt.data.shards import ShardIndex
from imagenet_opt.display.progress import announced
from imagenet_opt.display.table import Sheet
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.read_sheet import COLD, WARM, Setting, State, read_sheet
from imagenet_opt.measure.storage.parallel_reads import BatchRead, ReadPass, checked, read_shares, timed
from imagenet_opt.probe.samples import Rows, Samples
from imagenet_opt.probe.testbed import Patient

_WARM_SHARE, _WARM_FILES = 4, 4096
"""A quarter of the files is kept in memory, so many at most unless a batch for each worker takes more: far more than a
CPU's caches hold. The others are those on storage."""
_TRIAL = 0.25
"""Part of the time that is read on trial: a first batch alone is slower than the later ones."""
_SHORT = 0.8
"""A turn of less than that part of the time is not what was asked for."""


class Options(BaseModel):
    """num_workers: processes that read; reads_in_flight: requests of each; batch_size: files that make a batch."""

    model_config = ConfigDict(extra="forbid")
    num_workers: tuple[PositiveInt, ...] = Field(min_length=1)
    reads_in_flight: tuple[PositiveInt, ...] = Field(min_length=1)
    batch_size: tuple[PositiveInt, ...] = Field(min_length=1)
    state: tuple[State, ...] = Field(min_length=1)

    @property
    def settings(self) -> list[Setting]:
        grid = itertools.product(self.state, self.num_workers, self.reads_in_flight, self.batch_size)
        return [Setting(*values) for values in grid]


class Files:
    """The files that are read: some in memory, once `bring` has read them, the others on storage.

    settings: of the study, which says whether any are needed in memory, and how many are read at a time.
    """

    def __init__(self, samples: Samples, settings: Sequence[Setting]) -> None:
        self.samples = samples
        most = max([max(_WARM_FILES, one.num_at_a_time) for one in settings if one.state == WARM], default=0)
        self._warm, samples.rows = np.split(samples.rows, [min(most, len(samples.rows) // _WARM_SHARE)])

    def bring(self) -> None:
        """Raises DataError where none can be read."""
        if num_warm := len(self._warm):
            with announced(1) as announce:
                announce(f"reading {num_warm} files into memory")
                self.samples.bring(self._warm, least=num_warm, seconds=0.0)

    def most(self, setting: Setting) -> int:
        """Batches for each worker that no turn exceeds: files on storage are read once in a turn."""
        return 1_000_000 if setting.state == WARM else len(self.samples.rows) // setting.num_at_a_time

    def rows(self, setting: Setting, num: int) -> tuple[Rows, bool]:
        """So many samples: in memory, or out of it and others than the last ones, as long as there are any; and whether
        the kernel confirms that they are out of it."""
        if setting.state == WARM:
            return np.resize(self._warm, num), False
        rows = self.samples.take(num)
        return rows, self.samples.evict(rows).verified


def run(request: Request) -> list[Sheet]:
    """Raises ImagenetOptError."""
    options = checked_options(Options, request)
    patient = Patient(composed(request.overrides))
    samples, settings = patient.samples, options.settings
    if patient.how.shuffle == "block":
        samples.rows = in_blocks(len(samples.index), block_size_for(min(options.batch_size)))
    files = Files(samples, settings)
    for setting in settings:
        if not files.most(setting):
            few = f"only {len(samples.rows)} files; set study.batch_size=[N] or study.num_workers=[N] with less"
            raise ConfigError(f"study={request.name}: {setting}: {few}")
    files.bring()
    turns = {str(setting): partial(turn, files, setting, request.seconds) for setting in settings}
    rounds = rounds_of(turns, request, ReadPass)
    found = {setting: rounds.results[str(setting)] for setting in settings if str(setting) not in rounds.failures}
    sheet = read_sheet(found, _title(patient))
    return [replace(sheet, notes=(*rounds.reasons, *used_up(files, found, request.seconds), *sheet.notes))]


def _title(patient: Patient) -> str:
    index = patient.samples.index
    kind = f"packed (shards: {len(index.shards)})," if isinstance(index, ShardIndex) else "a folder,"
    return f"{kind} {len(index):,} images, data.shuffle={patient.how.shuffle}"


def used_up(files: Files, found: Mapping[Setting, Sequence[ReadPass]], seconds: float) -> Iterator[str]:
    """Says so where turns have read all files on storage long before their time was over."""
    cold = [
        (one.seconds, one.num_batches == files.most(setting) * setting.num_workers)
        for setting, passes in found.items()
        for one in passes
        if setting.state == COLD
    ]
    if short := [taken for taken, all_read in cold if all_read and taken < _SHORT * seconds]:
        yield (
            f"{len(files.samples.rows):,} files on storage were used up before the time in {len(short)} of {len(cold)} "
            f"cold turns, the shortest after {min(short):.2g} s of {seconds:g} s: none is timed twice in a turn. "
            "A larger data set makes such turns longer, --repeats makes more of them."
        )


def in_blocks(num: int, block_size: int) -> Rows:
    """Samples in random order of blocks of neighbours, as data.shuffle=block has them."""
    blocks = np.random.default_rng().permutation(num // block_size)
    return (block_size * blocks[:, None] + np.arange(block_size)).ravel()


def turn(files: Files, setting: Setting, seconds: float) -> ReadPass:
    """One batch for each worker tells how many are read on trial, and both tell how many fill `seconds`: these are then
    read, from first to last. The last of the three counts."""
    first, most = read(files, setting, 1), files.most(setting)
    if first.seconds >= seconds or most == 1:
        return first
    num_tried = min(max(2, int(_TRIAL * seconds / first.seconds)), most)
    trial = read(files, setting, num_tried)
    later_seconds = max((trial.seconds - first.seconds) / (num_tried - 1), trial.seconds / num_tried / 2)
    num_each = min(1 + int((seconds - first.seconds) / later_seconds), most)
    return trial if num_each <= num_tried else read(files, setting, num_each)


def read(files: Files, setting: Setting, num_each: int) -> ReadPass:
    """So many batches by each process, which take turns as a loader's workers do."""
    rows, is_cold = files.rows(setting, num_each * setting.num_at_a_time)
    batches = rows.reshape(-1, setting.batch_size)
    found = read_shares(
        [
            partial(_share, files.samples, setting.reads_in_flight, batches[worker :: setting.num_workers])
            for worker in range(setting.num_workers)
        ]
    )
    return replace(checked(found), is_cold=is_cold)


def _share(samples: Samples, reads_in_flight: int, batches: Rows) -> list[BatchRead]:
    """In a process of its own: what a worker reads, further batches ahead as in training. Nothing is decoded."""
    reader = Reader(samples.store, reads_in_flight=reads_in_flight, timeout_seconds=samples.how.read_timeout)
    places = [((0, step), batch) for step, batch in enumerate(batches)]

    def batch(step: int) -> list[bytes | Exception]:
        following = map(places.__getitem__, range(step + 1, len(places)))
        return [*reader.read(*places[step], following=following).samples]

    return [timed(partial(batch, step)) for step in range(len(places))]

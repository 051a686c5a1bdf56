"""What a run asks of its loggers beside Lightning's `Logger`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from lightning.pytorch import Trainer

SERVICES = ("wandb", "trackio", "mlflow")
"""Keys of the loggers in whose service a run goes on after a restart: see SentRows."""
ID_FILES = tuple(f"{key}_id.txt" for key in SERVICES)
"""Files of a run folder with the id of the run in a service; the mirror holds them too."""
FILES = (*ID_FILES, *(f"{key}_step.txt" for key in SERVICES))
"""ID_FILES, and those with the last step that was sent. A new run in the folder sets them aside."""
_OFFLINE = ContextVar("offline", default=False)


class RunLogger:
    """Base of a Lightning logger that answers a run. As it is, it answers in place of any other Lightning logger."""

    def truncate_after(self, step: int) -> None:
        """Drop or hide the rows of later steps, which a resumed run logs again; in all processes, before training."""

    def summarize(self, numbers: Mapping[str, float]) -> None:
        """Keep the numbers of the whole run; in the first process, after a finished fit."""

    def finish(self, *, exit_code: int, preempted: bool = False) -> None:
        """End the run, so that the next run of this process is another one; in all processes."""

    def unsent(self) -> str | None:
        """Of a run that was recorded offline: words about how to send it."""
        return None


def run_loggers(trainer: Trainer) -> list[RunLogger]:
    """The loggers of a trainer; one that is no RunLogger only logs."""
    return [logger if isinstance(logger, RunLogger) else RunLogger() for logger in trainer.loggers]


@contextmanager
def offline() -> Iterator[None]:
    """Loggers that are built in this block write only below their folder, as those of a run that is only measured."""
    before = _OFFLINE.set(True)
    try:
        yield
    finally:
        _OFFLINE.reset(before)


def is_offline() -> bool:
    return _OFFLINE.get()

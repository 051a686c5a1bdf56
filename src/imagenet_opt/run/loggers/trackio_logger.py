"""Trackio: on this machine, or in a Space of the Hugging Face Hub; a resumed run stays the same run."""

import io
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from imagenet_opt.run.loggers.sent_rows import SentRows, last_sent_step, run_id


class TrackioRunLogger(SentRows):
    """The name of the run ends in the id in trackio_id.txt. Raises ConfigError if Trackio is not installed."""

    service, key = "Trackio", "trackio"
    name, version = key, ""

    def __init__(
        self,
        *,
        folder: str,
        project: str = "imagenet-opt",
        name: str | None = None,
        group: str | None = None,
        space_id: str | None = None,
    ) -> None:
        super().__init__(folder=folder, logged_until=last_sent_step(Path(folder), self.key))
        self._run: Any = None
        self._start(partial(self._open, project, name, group=group, space_id=space_id))

    def _open(self, project: str, name: str | None, **options: Any) -> None:
        import trackio

        name = "-".join(filter(None, (name, run_id(self._folder, self.key))))
        options |= {"resume": "allow", "auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
        with redirect_stdout(io.StringIO()):  # Trackio prints how to open it
            self._run = trackio.init(project, name=name, **options)

    def _send(self, row: dict[str, float], step: int) -> None:
        self._run.log(row, step=step)

    def finish(self, *, exit_code: int, preempted: bool = False) -> None:
        if self._run is not None:
            import trackio

            with redirect_stdout(io.StringIO()):
                self._at_end(trackio.finish, "could not end its run")

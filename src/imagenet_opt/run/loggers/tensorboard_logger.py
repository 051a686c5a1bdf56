"""TensorBoard's event files, of which a resumed run hides the steps that it trains again."""

from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import TensorBoardLogger

from imagenet_opt.run.loggers.run_logger import RunLogger


class TensorBoardRunLogger(RunLogger, TensorBoardLogger):
    """Lightning's TensorBoard logger, with the event files in `save_dir`/`name`/`version`."""

    def __init__(
        self, save_dir: str, name: str | None = "tensorboard", version: int | str | None = "", **options: Any
    ) -> None:
        super().__init__(save_dir, name, version, **options)

    @rank_zero_only
    def truncate_after(self, step: int) -> None:
        """Event files cannot shrink: an event of a restart lets TensorBoard hide what was logged after `step`."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        restart = Event(step=step + 1, session_log=SessionLog(status=SessionLog.START))
        self.experiment.file_writer.add_event(restart, step + 1)

"""TensorBoard over restarts."""

from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import TensorBoardLogger


class TensorBoard(TensorBoardLogger):
    """Lightning's logger; TensorBoard shows each step of a resumed run once, as it was logged last."""

    @rank_zero_only
    def truncate_after(self, step: int) -> None:
        """Hide what was logged after `step`. The files keep it: they can only grow."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        writer: Any = self.experiment
        restart = Event(step=step + 1, session_log=SessionLog(status=SessionLog.START))
        writer.file_writer.add_event(restart, step + 1)

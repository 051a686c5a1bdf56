"""The TensorBoard logger of a run that may be resumed."""

from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import TensorBoardLogger


class TensorBoard(TensorBoardLogger):
    """Lightning's TensorBoard logger; a step that a resumed run logs again is shown once, with its last values."""

    @rank_zero_only
    def truncate_after(self, step: int) -> None:
        """Hide the rows after `step` from TensorBoard, whose files cannot shrink."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        writer: Any = self.experiment
        restart = Event(step=step + 1, session_log=SessionLog(status=SessionLog.START))
        writer.file_writer.add_event(restart, step + 1)

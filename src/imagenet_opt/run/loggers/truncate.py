"""When a run resumes, its loggers drop the rows that the run will log again."""

from lightning.pytorch import Callback, LightningModule, Trainer


class TruncateLogs(Callback):
    """Lets loggers that have `truncate_after` drop the rows of steps that are trained again.

    The hook is called after every part has accepted the checkpoint, so a refused resume changes no metrics.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for logger in trainer.loggers:
            if hasattr(logger, "truncate_after"):
                logger.truncate_after(trainer.global_step - 1)

"""When Lightning writes a row of metrics."""

from lightning.pytorch import Trainer


def is_logging_step(trainer: Trainer) -> bool:
    """Whether a row is written after the present batch, asked in `training_step` or `on_train_batch_end`.

    Lightning's own rule, for which it has no public name: every `log_every_n_steps` steps, and with accumulation
    only after the last batch of a step.
    """
    return trainer._logger_connector.should_update_logs and not trainer.fit_loop._should_accumulate()

"""A run's folder: checkpoints, loggers, resume."""

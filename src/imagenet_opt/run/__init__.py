"""Everything that a run writes and that ends or resumes it: checkpoints, loggers, stops."""

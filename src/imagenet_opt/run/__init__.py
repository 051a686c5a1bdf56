"""What a run writes, and what ends or resumes it: checkpoints, loggers, stops."""

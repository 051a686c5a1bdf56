"""Files that a run writes, and how a run stops and resumes: checkpoints, loggers, stops."""

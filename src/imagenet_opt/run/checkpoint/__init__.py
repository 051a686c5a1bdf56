"""Writing, finding and reading checkpoints."""

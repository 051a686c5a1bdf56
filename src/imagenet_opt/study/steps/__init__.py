"""Studies whose rows are overrides of a run."""

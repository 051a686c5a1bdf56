"""Stopping a run: signals, spot notices, SLURM, and the agreement of all processes on the batch."""

"""Measures the parts of a training setup; doctor, study, tune and batch_size=auto share it."""

"""Benchmark of the input pipeline without training, compared with other loaders."""

"""Benchmark of the input pipeline without training, beside other loaders."""

"""Clocks, samplers, experiments, statistics; independent of Lightning, Hydra, data and model."""

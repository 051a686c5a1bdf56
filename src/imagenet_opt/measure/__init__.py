"""Clocks, samplers, experiments, statistics; knows no Trainer."""

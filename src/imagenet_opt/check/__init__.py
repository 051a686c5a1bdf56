"""Checks a data set before training."""

"""Checkpoints: written, found, read."""

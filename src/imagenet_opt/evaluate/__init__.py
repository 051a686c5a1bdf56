"""Accuracy and loss of a trained network."""

"""Accuracy, loss and calibration of a trained network."""

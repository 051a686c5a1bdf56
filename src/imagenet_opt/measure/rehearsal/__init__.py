"""Simulation of an accelerator that the machine does not have."""

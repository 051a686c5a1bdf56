"""Computes the phases, hours and cost of a run before it starts."""

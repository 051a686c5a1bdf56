"""Compares several setups: rounds of measurements, ratios with intervals and verdicts, and a cache of results."""

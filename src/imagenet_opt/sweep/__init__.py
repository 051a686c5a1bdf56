"""Runs the jobs of a sweep, and prints the table of their results."""

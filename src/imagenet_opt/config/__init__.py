"""Turns the command line into a checked configuration, and the configuration into objects."""

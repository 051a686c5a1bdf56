"""Turns the command line into a checked configuration, and that into objects."""

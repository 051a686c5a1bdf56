"""Reads every file of a lazy mount once, so that training does not wait for the archive."""

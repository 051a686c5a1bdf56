"""Reads every file once, so that training does not wait for an archive behind the file system."""

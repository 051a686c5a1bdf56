"""Checks of the machine and the configuration: one file per subject, each check a pure function of read facts."""

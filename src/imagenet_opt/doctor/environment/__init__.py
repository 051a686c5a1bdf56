"""Checks of the machine that need no experiment: one file a subject, pure rules on facts that others read."""

"""Finds the fastest settings of this machine by measurement."""

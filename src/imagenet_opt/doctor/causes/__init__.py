"""Causes of a waiting GPU: rules that return evidence, remedy and predicted gain."""

"""The fit timer and its parts."""

"""Crop, resize, normalise and mix."""

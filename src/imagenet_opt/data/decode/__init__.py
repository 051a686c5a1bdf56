"""Decodes images, if possible only the part inside the crop."""

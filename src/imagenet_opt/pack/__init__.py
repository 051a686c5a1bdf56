"""Packs a folder of images into tar shards with an index."""

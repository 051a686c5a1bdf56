"""Bytes of samples: stores, and reads in flight."""

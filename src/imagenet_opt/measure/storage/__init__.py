"""Measures storage: reads, page cache, Lustre."""

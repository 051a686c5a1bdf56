"""Which settings are the fastest here, found by measurement."""

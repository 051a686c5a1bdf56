"""Lightning callbacks, one per file; each works in any Lightning project."""

"""Which files or records a data set has."""

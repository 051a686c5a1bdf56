"""Statistics of rates: intervals, block ratios, rounds."""

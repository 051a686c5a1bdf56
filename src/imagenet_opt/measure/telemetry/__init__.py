"""What a run records while it trains."""

"""Records a run while it trains."""

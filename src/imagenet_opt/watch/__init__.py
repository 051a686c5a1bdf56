"""Shows a run while it trains: the report as a page that reloads itself, and a view for a terminal."""

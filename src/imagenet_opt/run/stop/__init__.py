"""How a run is stopped, and how its processes agree on that."""

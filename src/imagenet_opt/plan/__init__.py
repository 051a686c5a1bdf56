"""What a run will do and cost, before it starts."""

"""Studies of one question each."""

"""What each optimisation is worth on this machine."""

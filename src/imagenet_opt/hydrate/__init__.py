"""Every file of a lazy mount is touched once."""

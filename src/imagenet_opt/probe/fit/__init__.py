"""Parts of the fit timer, one file per quantity."""

"""Parts of the fit timer: one file for each thing that it measures."""

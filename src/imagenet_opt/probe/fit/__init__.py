"""What a fit timer is made of: one file for each thing that it measures."""

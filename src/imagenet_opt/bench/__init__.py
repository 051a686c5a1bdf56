"""The input pipeline alone, beside other loaders."""

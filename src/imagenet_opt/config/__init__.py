"""Words of the command line become a checked configuration, and that becomes objects."""

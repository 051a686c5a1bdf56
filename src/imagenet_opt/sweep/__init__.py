"""Many runs of one command line, and the table of what came out."""

"""What can be said of a machine without an experiment: one file a subject, pure rules on facts read apart from them."""

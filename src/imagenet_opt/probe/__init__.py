"""A training setup taken apart and timed: what doctor, study, tune and batch_size=auto share."""

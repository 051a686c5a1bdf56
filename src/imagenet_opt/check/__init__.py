"""What is wrong with a data set, before training."""

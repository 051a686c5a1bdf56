"""What makes a GPU wait: rules that return evidence, remedy and predicted gain."""

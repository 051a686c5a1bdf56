"""What makes a GPU wait: rules that find it, each with its evidence, its cure and what that brings."""

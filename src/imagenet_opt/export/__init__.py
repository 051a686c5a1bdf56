"""The network of a checkpoint for other programs: as one file, or as a repository of the Hugging Face Hub."""

"""The doctor for a loop that is not ours: experiments on any loader and step, and a sweep of a DataLoader."""

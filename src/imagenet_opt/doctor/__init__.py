"""Why the GPU waits: experiments, rules with their evidence, a verdict and its remedies."""

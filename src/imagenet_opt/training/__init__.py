"""One run: build, fit, summary, and the record of a preemption."""

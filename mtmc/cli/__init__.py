"""One file a command; parses and calls, nothing else."""

"""Benchmarks: suites of problem files, the runner, and numbers that summarise results."""

"""Program to source text."""

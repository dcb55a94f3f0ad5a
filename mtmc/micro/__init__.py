"""Micro Coding: the coders, which do one step that somebody else decided, and only that."""

"""Triton: one renderer per form, one shared emitter for stage bodies."""

"""Kernel writing as a decision process: state, observation, policies and reward."""

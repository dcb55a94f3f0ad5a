"""Frozen records that cross a process or file boundary."""

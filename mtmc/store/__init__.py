"""What happened: every judged step in SQLite, and shards to move it between machines."""

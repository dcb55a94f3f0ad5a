"""``python -m mtmc`` is the command ``mtmc``."""

from __future__ import annotations

from mtmc.cli.app import main

if __name__ == "__main__":
    main()

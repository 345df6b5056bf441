"""One run: its settings, what it is built of, its folder, and what it leaves there."""

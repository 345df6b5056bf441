"""A model becomes a pool: its parts are found by recording its forward, and compared with it."""

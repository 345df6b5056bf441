"""Which architecture to try next, with Optuna; the only room that imports it."""

"""Which architecture to try next, with Optuna; the only package that imports it."""

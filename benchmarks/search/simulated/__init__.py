"""Searches played on landscapes: what each method finds, without a training, at equal steps."""

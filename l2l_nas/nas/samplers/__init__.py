"""Which architecture comes next."""

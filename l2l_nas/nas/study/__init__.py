"""What a study keeps of its trials, and where."""

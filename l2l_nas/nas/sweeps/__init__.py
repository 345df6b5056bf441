"""Sampled sweeps: a study whose trials are runs."""

"""The command line: the only package that imports hydra and omegaconf, one module for each command."""

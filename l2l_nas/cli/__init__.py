"""The command line: the only room that imports hydra and omegaconf, one module for each command."""

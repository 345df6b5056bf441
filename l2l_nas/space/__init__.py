"""What may be built: candidates, positions, pools, architectures, constraints, path samplers, shape check."""

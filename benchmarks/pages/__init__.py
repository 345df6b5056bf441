"""What README and docs say of measurements, made of the raw results: `python -m benchmarks figures`."""

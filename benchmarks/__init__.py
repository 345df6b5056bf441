"""Measurements of this library, most of them beside others: `python -m benchmarks` lists them."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the checkout
RESULTS = ROOT / "benchmarks" / "results"

"""Tests.

On some processors (AMD's) MKL sums by how memory is aligned, and a plain loop's slices of a batch are not aligned as
the relay's blocks are. The kernels named here do not so; this is read when torch is loaded, in each process.
"""

import os

os.environ.setdefault("MKL_CBWR", "AVX2")

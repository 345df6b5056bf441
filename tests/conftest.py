"""One thread for torch: tests run beside others, and idle OpenMP threads that spin slow all of them down."""

import torch

torch.set_num_threads(1)

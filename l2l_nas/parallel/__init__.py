"""One network on many devices: the world of ranks, and what they exchange. The only home of torch.distributed."""

"""torch.distributed's only home."""

"""Published models as pools: families by their configuration, and where each of their tensors goes."""

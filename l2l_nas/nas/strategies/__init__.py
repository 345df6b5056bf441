"""How a search spends its training: its phases, how they are divided, what follows the trials."""

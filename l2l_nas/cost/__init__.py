"""What an architecture costs, in closed form."""

"""The device side: plans, slots, the stash, the executor, and the reference trainer."""

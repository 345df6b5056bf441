"""A simulated accelerator: a device whose memory the host cannot touch and whose copies are late.

`pytest --device=simulated` runs tests on it; see docs/simulated_accelerator.md.
"""

"""Experiments: sweeps over a parameter grid, studies of attacks, and attacks on a configured release."""

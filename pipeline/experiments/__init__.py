"""Experiments: sweeps over a parameter grid and attacks on a configured release."""

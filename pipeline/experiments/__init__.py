"""Sweeps: a base configuration, what varies, seeds and measures in; one tidy table, figures and advice out."""

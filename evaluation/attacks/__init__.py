"""Attacks on releases: membership inference, reconstruction and trajectory recovery."""

"""Samplers for the noise source: keyed bits, exact integer noise, real-valued noise and keyed hashing."""

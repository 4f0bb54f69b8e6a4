"""Samplers behind the noise source: keyed bits, exact integer noise, real-valued noise, keyed hashing."""

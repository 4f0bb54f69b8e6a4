"""Samplers behind the noise source: keyed bits, exact integer arithmetic, fast simulation, keyed hashing."""

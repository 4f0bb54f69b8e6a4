"""What an attacker gets: membership inference on aggregate location counts."""

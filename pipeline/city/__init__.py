"""A made-up city: places on a grid and people who move between them by rules that are known exactly."""

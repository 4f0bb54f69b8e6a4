"""Configuration: YAML parsed into frozen dataclasses, with each problem reported in one line, and the plan of a run."""

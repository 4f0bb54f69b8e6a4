"""Configuration: YAML to frozen dataclasses, with every problem in one line, and the plan of a run."""

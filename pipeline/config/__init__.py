"""Configuration: YAML parsed into frozen dataclasses, with one error line per problem, and resolved into a run plan."""

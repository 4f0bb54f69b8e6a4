"""The configuration, parsed from YAML into frozen dataclasses with one line per problem, and the plan of a run."""

"""What all steps of a cluster have in common."""

from __future__ import annotations

import apache_beam as beam

from pipeline.plan import Plan


class ClusterStep(beam.DoFn):  # type: ignore[misc]
    """A step that knows the plan; a deployment's plan travels without its key, which every worker reads for itself.

    Parameters
    ----------
    plan
        The run.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

"""What all steps of a cluster have in common: how a plan travels to the workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import apache_beam as beam

from mechanisms.core.noise import NoiseKey
from pipeline.plan import Plan, load_key


class ClusterStep(beam.DoFn):  # type: ignore[misc]
    """A step whose plan travels without the secret of a deployment: every worker reads the noise key for itself.

    A pipeline is stored by the engine (job graph, checkpoints), where a key has no place. So the key's file or
    variable that ``noise_key`` names must be there on every worker.

    Parameters
    ----------
    plan
        The run.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __getstate__(self) -> dict[str, Any]:
        if self.plan.key.simulation:
            return dict(self.__dict__)
        # A new plan also leaves behind what the driver's plan has derived from the key.
        return self.__dict__ | {"plan": replace(self.plan, key=NoiseKey.from_seed(0))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.plan.config.mode == "deployment":
            self.plan = replace(self.plan, key=load_key(self.plan.config.noise_key or ""))

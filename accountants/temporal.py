"""Temporal privacy loss: what a series of releases tells about one moment, when neighbouring moments are correlated.

An adversary who knows how a person's value changes from one window to the next learns about the value at t from the
releases before and after t as well. This module holds the exact functions; `docs/temporal.md` has definitions, proofs
and how to read the figures. Matrices: P_B[i, j] = Pr(previous = j given now = i) and P_F[i, j] = Pr(next = j given
now = i). Every epsilon is a pure one for *replacing* a person's value, and every loss is in nats.
"""

from __future__ import annotations

from accountants.correlation.landmark_losses import LandmarkModel, landmark_temporal_privacy_loss
from accountants.correlation.leakage_function import LeakageFunction
from accountants.correlation.losses import temporal_privacy_loss
from accountants.correlation.matrices import (
    chain_matrix,
    count_transitions,
    estimated_matrix,
    laplacian_smoothing_matrix,
    read_matrix,
    transition_matrix,
)
from accountants.correlation.planning import epsilon_schedule, largest_epsilon
from accountants.correlation.running import LossRows, RunningTemporalLoss
from accountants.correlation.running_landmarks import LandmarkFigures, RunningLandmarkLoss
from accountants.correlation.time_reversal import backward_matrix, stationary_distribution

__all__ = [
    "LandmarkFigures",
    "LandmarkModel",
    "LeakageFunction",
    "LossRows",
    "RunningLandmarkLoss",
    "RunningTemporalLoss",
    "backward_matrix",
    "chain_matrix",
    "count_transitions",
    "epsilon_schedule",
    "estimated_matrix",
    "landmark_temporal_privacy_loss",
    "laplacian_smoothing_matrix",
    "largest_epsilon",
    "read_matrix",
    "stationary_distribution",
    "temporal_privacy_loss",
    "transition_matrix",
]

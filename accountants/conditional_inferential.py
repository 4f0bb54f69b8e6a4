"""Conditional inferential privacy: what a released trace says about its secret points when points depend on each other.

Meehan and Chaudhuri, *Location Trace Privacy Under Conditional Priors*, 2021. The trace is a Gaussian process on each
axis, the release adds Gaussian noise, and the adversary, who knows the process, compares two hypotheses about some
secret points. Figures are Rényi divergences in nats. The functions live in ``accountants.gaussian_process``, one file
each; ``docs/conditional_inferential.md`` explains them together.

Examples
--------
Ten points, every other one secret: dependence more than doubles what independence suggests.

>>> loss, independent_loss = conditional_inferential_loss(
...     times=range(10), secret=range(0, 10, 2), sigma=1.0, length_scale=2.0, radius=1.0, order=2.0
... )
>>> round(loss / independent_loss, 2)
2.8
"""

from __future__ import annotations

from accountants.gaussian_process.designed_covariance import designed_covariance, dominating_covariance
from accountants.gaussian_process.kernels import GaussianProcess, axis_models
from accountants.gaussian_process.length_scales import worst_length_scale
from accountants.gaussian_process.loss import conditional_inferential_loss
from accountants.gaussian_process.loss_table import loss_table
from accountants.gaussian_process.readings import LogOddsChange, expected_log_odds_change, posterior
from accountants.gaussian_process.regular_trace import regular_trace_loss, smallest_regular_sigma
from accountants.gaussian_process.running import Future, RunningLoss, add_release, running_losses, start_trace
from accountants.gaussian_process.secrets import every_other, named_family, singletons, sliding_blocks
from accountants.gaussian_process.smallest_sigma import smallest_sigma
from accountants.gaussian_process.worst_pair import worst_hypothesis, worst_pair

__all__ = [
    "Future",
    "GaussianProcess",
    "LogOddsChange",
    "RunningLoss",
    "add_release",
    "axis_models",
    "conditional_inferential_loss",
    "designed_covariance",
    "dominating_covariance",
    "every_other",
    "expected_log_odds_change",
    "loss_table",
    "named_family",
    "posterior",
    "regular_trace_loss",
    "running_losses",
    "singletons",
    "sliding_blocks",
    "smallest_regular_sigma",
    "smallest_sigma",
    "start_trace",
    "worst_hypothesis",
    "worst_length_scale",
    "worst_pair",
]

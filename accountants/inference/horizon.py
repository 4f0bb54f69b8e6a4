"""Bounds on attacks on the coming windows, computed for many targets at once from each adversary's current beliefs.

The same bounds as `success_upper_bound` in their cheapest form: genie and first-moment balls, information of order 1
(of order 0 above eight sensors a window), no sampling and no segments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from penstock.accountants.inference.information import (
    charged_information,
    largest_success,
    log_loose,
    mixture_information,
)
from penstock.accountants.inference.kernel import GenieSuccess, genie_back, one_wrong
from penstock.accountants.inference.observation import ADDITIVE, active_sensors, log_capacity, noise_scales
from penstock.accountants.inference.places import PlannedWindows
from penstock.accountants.inference.success_prior import check_horizon
from penstock.accountants.inference.targets import TargetPriors
from penstock.accountants.markov import FloatArray, IntArray

_PAIRED_SENSORS = 8


def genie_ahead(targets: TargetPriors, n_steps: int, tolerance: int) -> GenieSuccess:
    """Return the genie's success after a horizon's first window. O(n_targets n_steps tolerance n_places²)."""
    # It depends on the priors alone, hence is made once.
    return genie_back(targets, np.ones((targets.n_targets, tolerance + 1, targets.locations.shape[1])), n_steps - 1)


def horizon_bounds(
    targets: TargetPriors, start: FloatArray, coming: PlannedWindows, tolerance: int, ahead: GenieSuccess | None = None
) -> dict[str, FloatArray]:
    """Bound any attack's success on the coming windows for every target.

    `start`: (n_targets, n_places) belief about the first coming window. Returns ``loose``, ``tight``, ``leakage`` and
    ``best``, and what they are made of: ``ball``, ``information`` and ``entropy`` (nats); each (n_targets,).
    O(n_targets T n_places²) time, and that of `genie_ahead` if it is left out.
    """
    active, noise = active_sensors(coming.sensors, targets.n_locations), coming.noise
    n_steps = len(active)
    check_horizon(n_steps, tolerance)
    scales = noise_scales(noise, coming.scale, n_steps, targets.n_locations)
    marginals = np.empty((n_steps, *start.shape))
    marginals[0] = start
    for step in range(1, n_steps):
        marginals[step] = targets.forward(marginals[step - 1][:, None, :])[:, 0]
    log_ball: FloatArray = np.zeros(targets.n_targets)
    if tolerance < n_steps:
        ahead = ahead or genie_ahead(targets, n_steps, tolerance)
        after_error = one_wrong(ahead.values, has_total=False)[:, -1]
        gain = ahead.values[:, -1] - after_error
        genie = np.log((start * after_error).sum(axis=-1) + (start * gain).max(axis=-1)) + ahead.log_scale
        hits = sum(marginal.max(axis=-1) for marginal in marginals)
        log_ball = np.minimum(0.0, np.minimum(genie, np.log(hits / (n_steps - tolerance))))
    places = [_places(targets, window) for window in active]
    seen = [
        np.where(known, np.take_along_axis(marginal, index, axis=1), 0.0)
        for marginal, (index, known) in zip(marginals, places)
    ]
    n_seen = np.array([np.count_nonzero(mass, axis=1) for mass in seen])
    leaked = np.log(n_seen + (n_seen < np.count_nonzero(marginals, axis=2)))  # of each window, by its readings
    log_leakage = sum(leaked)
    if noise in ADDITIVE:
        noise_information = np.zeros(targets.n_targets)
        for mass, window, scale_of in zip(seen, active, scales):
            if window.size:
                hidden = np.maximum(1.0 - mass.sum(axis=1), 0.0)
                noise_information += mixture_information(mass, hidden, str(noise), scale_of[window])
        capacities = [log_capacity(str(noise), scale_of[window]) for scale_of, window in zip(scales, active)]
        log_leakage = sum(np.minimum(leaked, np.array(capacities)[:, None]))
    else:
        noise_information = np.full(targets.n_targets, charged_information(noise, scales))
        if noise == "pure_dp":
            log_leakage = np.minimum(log_leakage, scales.max(axis=1).sum())
    moves = [(marginal * targets.move_entropy).sum(axis=1) for marginal in marginals[:-1]]
    entropy: FloatArray = sum(moves, start=entr(start).sum(axis=1))
    information = np.minimum(np.minimum(_raw_information(targets, places, seen), noise_information), entropy)
    values = {
        "loose": log_loose(targets.n_locations, n_steps, tolerance, entropy, information),
        "tight": largest_success(log_ball, information),
        "leakage": np.minimum(0.0, log_ball + log_leakage),
    }
    result = {name: np.exp(value) for name, value in values.items()}
    result["best"] = np.min(list(result.values()), axis=0)
    return result | {"ball": np.exp(log_ball), "information": information, "entropy": entropy}


def _places(targets: TargetPriors, window: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
    """Return each active sensor's index among each target's places, (n_targets, n_sensors), and a validity mask."""
    index = np.zeros((targets.n_targets, targets.n_locations + 1), dtype=np.intp)
    known = np.zeros(index.shape, dtype=bool)
    rows = np.arange(targets.n_targets)[:, None]
    index[rows, targets.locations] = np.arange(targets.locations.shape[1])
    known[rows, targets.locations] = targets.locations >= 0
    # rows in a row of memory, so that sums do not depend on how many targets there are
    return np.ascontiguousarray(index[:, window]), np.ascontiguousarray(known[:, window])


def _raw_information(
    targets: TargetPriors, places: list[tuple[IntArray, NDArray[np.bool_]]], visible: list[FloatArray]
) -> FloatArray:
    """Return Σ_t H(Y_t given Y_{t−1}), or Σ_t H(Y_t) if there are too many sensors for the former."""
    total = np.zeros(targets.n_targets)
    owner = np.arange(targets.n_targets) if len(targets.transition) > 1 else np.zeros(targets.n_targets, dtype=np.intp)
    for step, seen in enumerate(visible):
        hidden = np.maximum(1.0 - seen.sum(axis=1), 0.0)
        alone = entr(seen).sum(axis=1) + entr(hidden)
        before = visible[step - 1]
        if step == 0 or max(seen.shape[1], before.shape[1]) > _PAIRED_SENSORS:
            total += alone
            continue
        moves = targets.transition[owner[:, None, None], places[step - 1][0][:, :, None], places[step][0][:, None, :]]
        both = before[:, :, None] * np.where(places[step][1][:, None, :], moves, 0.0)
        leave = np.maximum(before - both.sum(axis=2), 0.0)
        arrive = np.maximum(seen - both.sum(axis=1), 0.0)
        neither = np.maximum(hidden - leave.sum(axis=1), 0.0)
        joint = entr(both).sum(axis=(1, 2)) + entr(leave).sum(axis=1) + entr(arrive).sum(axis=1) + entr(neither)
        past = entr(before).sum(axis=1) + entr(np.maximum(1.0 - before.sum(axis=1), 0.0))
        total += np.clip(joint - past, 0.0, alone)
    return total

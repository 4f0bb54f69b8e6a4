"""Whether a release can be followed window by window, by somebody who knows where everybody else is."""

from __future__ import annotations

from accountants.inference.releasing import Releasing
from evaluation.attacks.retracing import Shown
from mechanisms.core.errors import ParameterError
from mechanisms.core.mechanism import MECHANISMS
from mechanisms.crowd_blending import CrowdBlending
from mechanisms.fixed_ranges import FixedRanges
from mechanisms.perturb_small import PerturbSmall
from mechanisms.suppress_small import SuppressSmall
from pipeline.plan import Plan


def shown_by(plan: Plan) -> Shown | None:
    """What a mechanism without noise that looks at every count by itself makes of counts; None: any other."""
    reader = plan.chain.reader
    if isinstance(reader, CrowdBlending):
        reader = reader.form
    return reader.without_noise if isinstance(reader, SuppressSmall | FixedRanges) else None


def refuse_unless_followed(plan: Plan) -> None:
    """Refuse what cannot be retraced window by window from the release less everybody else.

    Raises
    ------
    ParameterError
        There are no people, one counts in several cells, windows overlap, or a release has no known likelihood.
    """
    source = plan.config.source
    if not source.has_people:
        right = "one that tells people apart: here every trip is somebody new, and nobody has a way to retrace"
        raise ParameterError("source", type(source).__name__.lower(), right)
    if plan.max_cells != 1:
        raise ParameterError(
            "bounding.max_cells",
            plan.config.bounding.max_cells,
            "1 for a reconstruction attack: with several cells of a window there is no one way to retrace",
        )
    if plan.calendar.overlapping:
        right = "of windows that do not overlap: one moment would be in more than one release"
        raise ParameterError("windows", plan.config.windows, right)
    steps = plan.config.mechanism
    # which counts get noise depends on the counts where small ones are perturbed
    adds_noise = Releasing(plan.chain.reader, steps).adds_noise_only and not isinstance(plan.chain.reader, PerturbSmall)
    if plan.chain.simple and (adds_noise or shown_by(plan) is not None):
        return
    right = (
        "a single step that adds noise of a known scale in each window, or changes each count by itself: how likely a "
        "release of any other is, is not known; the accountant `reconstruction` bounds what it tells"
    )
    raise ParameterError("mechanism", [MECHANISMS.name_of(type(step)) for step in steps], right)

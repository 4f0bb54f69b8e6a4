"""How the rows of each known accountant are best shown; the default serves any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluation.utility import METRICS


@dataclass(frozen=True)
class Treatment:
    """Presentation of one accountant.

    Parameters
    ----------
    title, note
        Of its charts.
    order
        Place on the page, small first.
    style
        ``line``, or ``step`` where a figure holds for a whole window.
    unit
        What its charts are measured in where their title does not say.
    panels
        Beginnings of names, and the title of the panel such names have to themselves.
    hidden
        Names that are shown on request only.
    rules
        Horizontal lines with a meaning.
    domain
        Range of values that is always shown where the unit is its own.
    headline
        Names of whole-run figures that belong on top of the page, the first one found of each entry.
    adversary
        Against whom the figures hold, in words.
    labels
        What names mean to people.
    stacked
        Names whose values add up to something: drawn as areas on top of one another.
    """

    title: str = ""
    note: str = ""
    order: int = 50
    style: str = "line"
    unit: str = "nats"
    panels: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    rules: tuple[tuple[str, float], ...] = ()
    domain: tuple[float, float] | None = None
    headline: tuple[tuple[str, ...], ...] = ()
    adversary: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    stacked: tuple[str, ...] = ()

    def label(self, name: str) -> str:
        """A name as people read it."""
        return self.labels.get(name, name.replace("_", " "))

    def panel(self, name: str, unit: str) -> tuple[str, str]:
        """Title and unit of the chart that a name belongs to: figures of different units never share an axis."""
        is_own = unit.startswith(self.unit)
        plain = self.title if is_own else f"{self.title}, {unit}"
        titles = (title for beginning, title in self.panels.items() if name.startswith(beginning))
        return next(titles, plain), self.unit if is_own else unit

    def is_rule(self, name: str, shown: set[str]) -> bool:
        """Whether a whole-run figure is worth a horizontal line in a chart of the names shown."""
        return "supremum" in name and "total_loss" in shown

    def smallest_is_worst(self, name: str) -> bool:
        """Whether the figure to watch is the smallest."""
        return name.endswith("_left")


KNOWN = {
    "landmark_budget": Treatment(
        title="Budget",
        note="ε spent on the landmarks and the costliest other window of each budget period, and what is left of it.",
        order=10,
        style="step",
        hidden=("landmark_loss", "period_landmarks", "period_loss"),
        headline=(("period_loss", "budget_spent"),),
        labels={
            "epsilon": "ε of the window",
            "budget_spent": "spent",
            "budget_left": "left",
            "period_loss": "loss of a budget period",
            "period_landmarks": "loss of the landmarks of a period",
        },
        stacked=("budget_spent", "budget_left"),
        adversary="whoever sees all releases and knows everything but one person's visits in the landmark windows "
        "of a period and in any one other window",
    ),
    "composition": Treatment(
        title="Loss",
        note="What has been spent so far on one event, on any w successive windows and on a whole person.",
        order=20,
        style="step",
        panels={
            "event_": "Loss of one event",
            "w_event_": "Loss over w windows",
            "user_rho": "Concentrated loss of a whole person",
            "user_": "Loss of a whole person",
        },
        headline=(("user_epsilon_pld", "user_epsilon_rdp", "user_epsilon"), ("w_event_epsilon", "event_epsilon")),
        labels={
            "event_epsilon": "one event, pure",
            "event_epsilon_rdp": "one event, (ε, δ) by Rényi",
            "w_event_epsilon": "any w windows, pure",
            "w_event_epsilon_rdp": "any w windows, (ε, δ) by Rényi",
            "user_epsilon": "a whole person, pure",
            "user_epsilon_rdp": "a whole person, (ε, δ) by Rényi",
            "user_epsilon_advanced": "a whole person, (ε, δ) by advanced composition",
            "user_epsilon_pld": "a whole person, (ε, δ) by loss distributions",
            "user_epsilon_classical": "a whole person, classical Gaussian formula",
            "user_rho": "a whole person, ρ",
        },
        hidden=("user_epsilon_advanced",),
        adversary="whoever sees all releases and knows everything but one person's events",
    ),
    "temporal": Treatment(
        title="Temporal privacy loss",
        note="What the releases before (backward) and after (forward) a window add to its own ε, through the way "
        "people move. Provisional figures end in the bound that later releases cannot pass.",
        order=30,
        hidden=("landmark_loss", "largest_landmark_loss"),
        headline=(("largest_total_loss", "total_loss"), ("supremum",)),
        labels={
            "backward_loss": "backward",
            "forward_loss": "forward",
            "total_loss": "total",
            "largest_total_loss": "largest temporal loss of a window",
            "supremum": "temporal loss if it went on for ever",
        },
        adversary="whoever also knows how people move from window to window",
    ),
    "reconstruction": Treatment(
        title="Reconstruction risk",
        note="How likely an adversary is to retrace a person's way, as a bound, and as realised where targets are "
        "followed.",
        order=40,
        unit="probability",
        panels={
            "place_known": "Certainty about a place",
            "information": "Information about a way",
            "visit_frequency": "How often targets are in a count",
        },
        hidden=("loose_bound", "tight_bound", "leakage_bound", "ball"),
        domain=(0, 1),
        headline=(("best_bound",), ("realised_risk",)),
        labels={
            "best_bound": "bound on the success of any attack",
            "realised_risk": "realised risk of reconstruction",
            "place_known": "likeliest place",
            "ball": "without any release",
        },
        adversary="whoever knows everybody else and how the target moves",
    ),
    "membership": Treatment(
        title="Membership inference",
        note="How well this attack tells whether a person is in the counts: 0.5 is guessing, 1 is certainty. It is no "
        "bound: another attack may do better.",
        order=60,
        unit="area under the curve",
        hidden=("window_auc",),
        rules=(("guessing", 0.5),),
        domain=(0.4, 1),
        headline=(("membership_auc",),),
        labels={"membership_auc": "membership attack so far", "window_auc": "from one window alone"},
        adversary="whoever was trained on counts with and without the target; another attack may do better",
    ),
    "crowd_blending": Treatment(
        title="Crowd blending",
        order=45,
        headline=(("event_epsilon",), ("crowd_epsilon",)),
        labels={"crowd_size": "size of the crowd", "crowd_epsilon": "loss within the crowd"},
    ),
    "conditional_inferential": Treatment(
        title="Conditional inferential loss",
        order=35,
        adversary="whoever knows the locations outside the secret and how they vary together",
    ),
}


#: Metrics whose names are short for something.
METRIC_TITLES = {
    "js_distance": "Jensen–Shannon distance",
    "js_divergence": "Jensen–Shannon divergence",
    "kendall_tau": "Kendall's τ",
    "hotspot_f1": "Hotspots found (F1)",
    "hotspot_rank_tau": "Order of hotspots (τ)",
    "pearson": "Pearson correlation",
}


def metric_words(name: str) -> tuple[str, str, str]:
    """Title, unit and meaning of a metric, known or not.

    Examples
    --------
    >>> metric_words("mae")
    ('Mean absolute error', 'people', 'Absolute error in people, mean over cells and windows (0 is best).')
    >>> metric_words("my_own")
    ('My own', '', '')
    """
    metric = METRICS.get(name)
    title = METRIC_TITLES.get(name, (metric.function.__name__ if metric else name).replace("_", " ").capitalize())
    return (title, metric.unit, metric.help.replace("`", "")) if metric else (title, "", "")


def treatment(accountant: str) -> Treatment:
    """Presentation of an accountant, known or not.

    Examples
    --------
    >>> treatment("landmark_budget").title, treatment("my_own").title
    ('Budget', 'My own')
    """
    return KNOWN.get(accountant) or Treatment(title=accountant.replace("_", " ").capitalize())

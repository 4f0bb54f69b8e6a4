"""How the membership game is played: what may be asked for, and what it comes to on a run."""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.attacks.game import ATTACKS
from evaluation.attacks.priors import CHALLENGES, PRIORS
from evaluation.attacks.released import MAX_VALUES
from mechanisms.core.errors import ParameterError
from mechanisms.core.parameters import Checked, parameter


@dataclass(frozen=True, kw_only=True)
class Game(Checked):
    """How the game is played; what is not given fits the paper where the run is large enough.

    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, section 3.1: 150 targets, groups of 100 or more, one-week windows.
    """

    targets: int = parameter(30, doc="people attacked, a third of each mobility group", at_least=3)
    samples: int = parameter(1000, doc="labelled aggregates of each target", at_least=8)
    prior: str = parameter("subset", doc="what the adversary knows", choices=PRIORS)
    attack: str = parameter("pca", doc="how she decides", choices=ATTACKS)
    known: float = parameter(0.2, doc="prior subset: share of the people whom she knows", above=0, at_most=1)
    challenges: str = parameter(
        "known",
        doc="prior subset: whom challenges count beside the target, those she knows or others",
        choices=CHALLENGES,
    )
    group_size: int | None = parameter(
        None, doc="people in an aggregate; unset: half of those whom she can draw from, at most 100", at_least=1
    )
    inference: int | None = parameter(
        None, doc="windows of a challenge; unset: 168, or what the run has room for", at_least=1
    )
    observation: int | None = parameter(
        None, doc="windows to train on; unset: those of the challenge, or twice as many before it", at_least=1
    )
    components: int = parameter(600, doc="principal components at most", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.challenges == "others" and self.prior != "subset":
            raise ParameterError("challenges", self.challenges, f"known with the prior {self.prior}")
        if self.challenges == "others" and self.known == 1:
            right = "below 1 with challenges of others: there is nobody left whom she does not know"
            raise ParameterError("known", self.known, right)

    def periods(self, n_windows: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Observation and inference as (start, stop), for a run of that many windows."""
        if self.prior == "subset":
            inference = self.inference or self.observation or min(168, n_windows)
            observation = self.observation or inference
            periods = (0, observation), (max(observation - inference, 0), observation)
        else:
            inference = self.inference or min(168, max(n_windows // 3, 1))
            observation = self.observation or 2 * inference
            periods = (0, observation), (observation, observation + inference)
        if observation < inference:
            raise ParameterError("observation", observation, f"at least the {inference} windows of a challenge")
        if periods[1][1] > n_windows:
            raise ParameterError("observation", self.observation, f"with the challenge within {n_windows} windows")
        return periods

    def people_in_a_group(self, n_people: int) -> int:
        """Size of an aggregate among so many people."""
        if self.group_size is not None:
            return self.group_size
        n_pool = n_people
        if self.prior == "subset":
            n_known = round(self.known * n_people)
            n_pool = min(n_known, n_people - n_known) if self.challenges == "others" else n_known
        return max(1, min(100, n_pool // 2))

    def check_room(self, n_windows: int, n_cells: int) -> None:
        """Refuse more released aggregates than fit into memory, on a run of that size."""
        observation, inference = self.periods(n_windows)
        length = inference[1] - inference[0]
        n_blocks = 1 if self.prior == "subset" else (observation[1] - observation[0]) // length + 1
        most = MAX_VALUES // (length * n_cells)
        if self.attack == "pca" and self.samples // n_blocks * n_blocks > most:
            of_size = (
                f"where an aggregate has {length} windows of {n_cells} cells; a shorter inference has room for more"
            )
            raise ParameterError("samples", self.samples, f"at most {most} {of_size}")

"""How ways are retraced: what may be asked for, and what it comes to on a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from accountants.inference.targets import KnownPrior
from accountants.reconstruction import Reconstruction
from mechanisms.core.plugin import Checked, ParameterError, parameter
from pipeline.config.run import RunConfig

#: Most visited cells that are places of their own, where the configuration says nothing else.
PLACES = 200


@dataclass(frozen=True, kw_only=True)
class ReconstructionGame(Checked):
    """How ways are retraced; what is not given comes from the configured accountant ``reconstruction``, if any.

    Koga, Meehan, Chaudhuri, "Measuring Privacy Loss in Distributed Spatio-Temporal Data", section 3.2.
    """

    targets: int = parameter(30, doc="people attacked, a third of each mobility group", at_least=3)
    horizon: int | None = parameter(None, doc="windows guessed together; unset: 10, or what fits", at_least=1)
    tolerance: int | None = parameter(None, doc="wrong guesses that still are a success; unset: 2", at_least=0)
    training: int | None = parameter(
        None, doc="first windows, which the adversary learns from; unset: half of the run, at most 168", at_least=2
    )
    learned: str | None = parameter(None, kind="path", doc="file of `penstock learn` in place of people's own moves")
    stretches: int = parameter(10, doc="stretches of windows attacked after the training, at most", at_least=1)
    releases: int = parameter(10, doc="releases of them, each with noise of its own", at_least=1)
    simulated: int = parameter(200, doc="made-up ways of each prior to hold the bound against; 0: none", at_least=0)
    bound_samples: int = parameter(500, doc="draws for the first-moment bound; 0: it is left out", at_least=0)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A game with nothing left open but how an estimated prior is smoothed, where the adversary ``tunes`` it."""

    horizon: int
    tolerance: int
    n_stretches: int
    known: KnownPrior
    tunes: bool

    @property
    def training(self) -> int:
        """Windows before the first stretch."""
        return self.known.windows or 0

    @property
    def n_windows(self) -> int:
        """Windows up to the end of the last stretch."""
        return self.training + self.n_stretches * self.horizon


def settle(game: ReconstructionGame, config: RunConfig, n_windows: int, n_cells: int) -> Settings:
    """What a game is on a run of that size.

    Raises
    ------
    ParameterError
        The run is too short, or every guess would be a success.
    """
    if n_windows < 3:
        raise ParameterError("windows", n_windows, "3 or more in a run: two to learn from, one to attack")
    own = next((each for each in config.accountants if isinstance(each, Reconstruction)), None)
    horizon = game.horizon or (own.horizon if own else min(10, max(n_windows // 2, 1)))
    if horizon > n_windows - 2:
        raise ParameterError(
            "horizon", horizon, f"at most {n_windows - 2}: two of {n_windows} windows are learned from"
        )
    asked = max((each.training_windows or 0 for each in config.accountants), default=0)
    training = game.training or (asked if 2 <= asked <= n_windows - horizon else min(168, n_windows // 2))
    if training < 2 or training + horizon > n_windows:
        right_size = f"2 to {n_windows - horizon}, so that {horizon} of the {n_windows} windows are left to attack"
        raise ParameterError("training", training, right_size)
    given = game.tolerance if game.tolerance is not None else (own.tolerance if own else min(2, horizon - 1))
    if given >= horizon:
        raise ParameterError("tolerance", given, f"below the horizon of {horizon} windows, or every guess succeeds")
    if game.learned:
        known = KnownPrior(learned=game.learned, windows=training)
    elif own:
        known = replace(own.prior, windows=training)
    else:
        known = KnownPrior(estimate="first", windows=training, top=PLACES if n_cells > PLACES else None)
    n_stretches = min(game.stretches, (n_windows - training) // horizon)
    tunes = own is None and not game.learned
    return Settings(horizon=horizon, tolerance=given, n_stretches=n_stretches, known=known, tunes=tunes)

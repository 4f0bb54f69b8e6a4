"""Checks of the mechanism contract, with one function per promise. A check raises `AssertionError` if it fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from penstock.accountants.core.charges import concentrated_rho, pure_epsilon
from penstock.mechanisms.core import events
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import (
    ACTIONS,
    ChainStep,
    EventStep,
    Facts,
    Interpretation,
    Postprocess,
    Release,
)
from penstock.mechanisms.core.events import Additive, Block, Event
from penstock.mechanisms.core.plugin import ParameterError, parameters_of
from penstock.mechanisms.core.run import step_through
from penstock.mechanisms.core.state import State, decode_state, encode_state
from penstock.mechanisms.core.unit import PERIOD
from penstock.mechanisms.discrete_laplace import DiscreteLaplace
from penstock.testing import runs
from penstock.testing.noise import noise_matches
from penstock.testing.runs import Subject, contents, counts_for, facts_for, matrix_of, released, worlds

#: A check takes a subject and raises `AssertionError` where its promise is broken.
Check = Callable[[Subject], None]

#: Layout in which states are compared.
FORMAT = ("subject", 1)
#: A sample that is what it should be is refused this rarely; one of a scale 30 % off must be refused at this level.
LEVEL = 1e-6
#: Families whose charges are priced in ρ.
GAUSSIAN = ("gaussian", "discrete_gaussian")


def resumes_from_encoded_state(subject: Subject) -> None:
    """Check that a run can be resumed from its encoded state after any window."""
    for facts, windows in worlds(subject):
        uninterrupted, end = released(subject, counts_for(), facts, windows)
        restart, mechanism = (
            lambda state: decode_state(encode_state(*FORMAT, state), *FORMAT),
            runs.Amnesiac(subject.mechanism),
        )
        cut, resumed = released(subject, counts_for(), facts, windows, restart, mechanism)
        assert contents(cut) == contents(uninterrupted), "releases differ after a restart"
        assert encode_state(*FORMAT, resumed) == encode_state(*FORMAT, end), "the last state differs"


def leaves_inputs_alone(subject: Subject) -> None:
    """Check that counts and state are not modified and that releases do not share memory with the counts."""
    for facts, windows in worlds(subject):
        counts = counts_for()
        seen: list[Any] = []

        def look(state: State, seen: list[Any] = seen) -> State:
            """Record the state of the next step and its encoded bytes."""
            seen[:] = [state, encode_state(*FORMAT, state)]
            return state

        for made, _ in step_through(subject.mechanism, counts, facts, windows, subject.source, look):
            assert np.array_equal(counts, counts_for()), "the counts were changed"
            assert encode_state(*FORMAT, seen[0]) == seen[1], "the state was changed"
            is_view = any(np.shares_memory(release.values, counts) for release in made)
            assert not is_view, "a release is a view of counts"


def state_does_not_grow(subject: Subject) -> None:
    """Check that the final state is at most 8 bytes larger than the state halfway through the run."""
    facts = facts_for(48, landmarks=tuple(range(3, 48, 5)), budget_period=12)
    steps = step_through(subject.mechanism, counts_for(48), facts, facts.windows(), subject.source)
    sizes = [len(encode_state(*FORMAT, state)) for _, state in steps]
    half, at_the_end = sizes[23], sizes[47]
    # Texts of numbers in the header are all that may differ.
    assert at_the_end <= half + 8, f"{half} bytes after half the windows, {at_the_end} after all"


def charges_stay_within_worst_charge(subject: Subject) -> None:
    """Check that no step is charged more than the worst-case charge announced before it."""
    for facts, windows in worlds(subject):
        spent_blocks, offered_blocks = 0.0, 0.0
        state = subject.mechanism.start(facts)
        steps = step_through(subject.mechanism, counts_for(), facts, windows, subject.source)
        for number, (made, after) in enumerate(steps):
            worst = subject.mechanism.worst_charge(windows[number], state) if number < len(windows) else ()
            state = after
            charged = [event for release in made for event in release.charge]
            for price in (pure_epsilon, concentrated_rho):
                spent, offered = price(_outside_blocks(charged)), price(_outside_blocks(worst))
                assert spent <= offered * (1 + 1e-12), f"step {number + 1} charges {spent}, announced were {offered}"
            offered_blocks += pure_epsilon(e for e in worst if isinstance(e, Block))
            spent_blocks += pure_epsilon(e for e in charged if isinstance(e, Block))
            assert spent_blocks <= offered_blocks * (1 + 1e-12), "blocks charge more than was announced"


def _outside_blocks(charge: Iterable[Event]) -> list[Event]:
    return [event for event in charge if not isinstance(event, Block)]


def without_limits_gives_the_ideal(subject: Subject) -> None:
    """Check that releases with an unlimited budget are equal to `Interpretation.without_noise`."""
    for facts, windows in worlds(subject):
        mechanism = runs.without_limits(subject.mechanism)
        releases, _ = released(subject, counts_for(), facts, windows, mechanism=mechanism)
        ideal = np.asarray(Interpretation.of(mechanism).without_noise(counts_for()), np.float64)
        shown, n_published = np.zeros(facts.n_cells), 0
        for release in releases:
            active = np.ones(facts.n_cells, bool) if release.active is None else release.active
            if release.repeats is None:
                shown = np.where(active, ideal[release.window - 1], shown)
                n_published += 1
            np.testing.assert_allclose(release.values[active], shown[active], rtol=1e-9, atol=1e-9)
        assert n_published > 0, "nothing is published"


def noise_has_the_declared_scale(subject: Subject) -> None:
    """Check that the noise fits its family at the declared scale but does not fit if the scale is off by 30 %."""
    n_cells = 40_000  # enough to refuse a scale that is a tenth off
    facts = facts_for(6, n_cells, max_cells=1, landmarks=(2, 4))
    counts = np.random.default_rng(3).poisson(30, (6, n_cells))
    releases, _ = released(subject, counts, facts)
    noises = Interpretation.of(subject.mechanism).noise_in(matrix_of(releases, counts), counts)
    blocks = tuple(e for release in releases for e in release.charge if isinstance(e, Block))
    distinguished: set[float] = set()
    for release in (release for release in releases if release.repeats is None):
        if release.noise == "none":
            assert pure_epsilon(release.charge + blocks) == np.inf, "no noise, yet a finite charge"
            continue
        scales = np.broadcast_to(release.scale, n_cells)
        for scale in np.unique(scales[scales > 0]):
            sample = noises[release.window - 1][scales == scale]
            if len(sample) < n_cells // 5:
                continue
            assert noise_matches(sample, release.noise, scale) > LEVEL, f"not {release.noise} noise of scale {scale}"
            if scale not in distinguished:
                wrong = [noise_matches(sample, release.noise, factor * scale) for factor in (0.7, 1.3)]
                is_distinguished = max(wrong) < LEVEL
                assert is_distinguished, f"{release.noise} noise of scale {scale} is that of a scale 30 % off as well"
                distinguished.add(scale)


def charges_cover_the_noise(subject: Subject) -> None:
    """Check that the charges are at least as large as the privacy loss caused by the noise."""
    for facts, windows in worlds(subject):
        releases, _ = released(subject, counts_for(), facts, windows)
        blocks = [e for release in releases for e in release.charge if isinstance(e, Block)]
        for release in (release for release in releases if release.repeats is None):
            active = np.ones(facts.n_cells, bool) if release.active is None else release.active
            scales = np.sort(np.broadcast_to(np.asarray(release.scale, float), facts.n_cells)[active])
            hit = scales[: facts.max_cells]  # the cells where one user shows most
            charge = blocks if blocks else release.charge
            with np.errstate(divide="ignore"):
                if release.noise in GAUSSIAN:
                    minimum, paid = (1 / (2 * hit**2)).sum(), concentrated_rho(charge)
                else:
                    minimum, paid = (1 / hit).sum(), pure_epsilon(charge)
            assert paid >= minimum * (1 - 1e-9), f"window {release.window} charges {paid}, its noise gives {minimum}"
        _periods_are_covered(facts, releases)


def _periods_are_covered(facts: Facts, releases: list[Release]) -> None:
    """Check that a block that is charged window by window covers all of a user's memberships in those windows."""
    charges = [event for release in releases for event in release.charge]
    for block in (event for event in charges if isinstance(event, Block) and events.Covered(event.first) in charges):
        rates = []
        for release in releases:
            if block.first <= release.window <= block.last and release.repeats is None:
                scales = np.broadcast_to(np.asarray(release.scale, float), facts.n_cells)
                rates.append(np.sort(1 / scales)[::-1][: facts.max_cells])
        most = facts.of_unit(PERIOD, facts.n_cells, block.last - block.first + 1).l1
        most_expensive = np.sort(np.concatenate(rates))[::-1][: int(most)]
        is_gaussian = isinstance(block.inner, Additive) and block.inner.is_gaussian
        minimum = (most_expensive**2).sum() / 2 if is_gaussian else most_expensive.sum()
        paid = concentrated_rho((block,)) if is_gaussian else pure_epsilon((block,))
        assert paid >= minimum * (1 - 1e-9), f"the block of {block.first} charges {paid}, its noise gives {minimum}"


def a_retry_draws_the_same_noise(subject: Subject) -> None:
    """Check that repeating a run gives identical releases."""
    for facts, windows in worlds(subject):
        first, _ = released(subject, counts_for(), facts, windows)
        again, _ = released(subject, counts_for(), facts, windows)
        assert contents(first) == contents(again), "the same run released something else"


def a_changed_count_draws_independent_noise(subject: Subject) -> None:
    """Check that the noise is independent if a single count differs."""
    facts, n_cells = facts_for(6, 2000, landmarks=(2, 4)), 2000
    counts = counts_for(6, n_cells)
    changed = counts.copy()
    changed[0, 7] += 1
    unchanged, _ = released(subject, counts, facts)
    other, _ = released(subject, changed, facts)
    first, second = unchanged[0], other[0]
    assert first.repeats is second.repeats is None, "the first window is published when it is far from empty"
    if first.noise == "none":
        return
    pairs = ((unchanged, counts), (other, changed))
    noises = [Interpretation.of(subject.mechanism).noise_in(matrix_of(run, matrix), matrix)[0] for run, matrix in pairs]
    correlation = abs(np.corrcoef(*noises)[0, 1])
    assert correlation < 5 / np.sqrt(n_cells), "noise on counts that differ by one is not independent"


def replicas_equal_separate_runs(subject: Subject) -> None:
    """Check that releasing several replicas at once gives the same values as separate runs."""
    matrices = np.stack([counts_for(seed=seed) for seed in (1, 2, 3)])
    for facts, windows in worlds(subject):
        joint, _ = released(subject, matrices, replace(facts, n_replicas=3), windows)
        for number, counts in enumerate(matrices):
            one = replace(subject, source=runs.OneReplica(subject.source, number))
            alone, _ = released(one, counts, facts, windows)
            replica = contents(release.replica(number) for release in joint)
            assert replica == contents(alone), f"replica {number} releases something else than a run of its replica"


def every_window_is_released_once(subject: Subject) -> None:
    """Check that every window is released once and in order, with values for exactly the active sensors."""
    for facts, windows in worlds(subject):
        releases, _ = released(subject, counts_for(), facts, windows)
        numbers = [release.window for release in releases]
        assert numbers == [window.index for window in windows], f"windows {numbers} are released"
        for release, window in zip(releases, windows):
            assert isinstance(release, Release), f"{type(release).__name__} is no Release"
            assert release.action in ACTIONS, f"{release.action!r} is no action"
            is_new = release.action == "published"
            assert (release.repeats is None) == is_new, "`repeats` and `action` contradict each other"
            assert release.landmark == window.landmark, "a release is no landmark where its window is, or the reverse"
            active = np.ones(facts.n_cells, bool) if window.active is None else window.active
            assert np.array_equal(~np.isnan(release.values), active), "values exactly where sensors are active"


def every_draw_is_charged_and_every_charge_is_drawn(subject: Subject) -> None:
    """Check that every step is charged for exactly the noise that it draws, for both queries and publications."""
    for facts, windows in worlds(subject):
        for first in (0, 1):
            script: Any = runs.ScriptedNoise(first)
            steps = step_through(subject.mechanism, counts_for(), facts, windows, script)
            n_repeated, blocks = 0, dict[int, Block]()
            for number, (made, _) in enumerate(steps):
                # Of a question about a block the noise is not that of single cells, and no noise is none of a charge.
                charge = [event for release in made for event in release.charge]
                blocks |= {event.first: event for event in charge if isinstance(event, Block)}
                for place, event in enumerate(charge):
                    if isinstance(event, events.Covered):
                        block = blocks[event.first]
                        is_inside = event.first <= number + 1 <= block.last
                        assert is_inside, f"window {number + 1} is not covered by the block of {event.first}"
                        charge[place] = block.inner
                if any(isinstance(event, Block | events.Exact) for event in charge) or not made:
                    continue
                charged = [getattr(event, "inner", event) for event in charge]
                noisy = [event for event in charged if isinstance(event, Additive)]
                priced = sorted((event.family, round(float(event.scale), 9)) for event in noisy)
                drawn = sorted((family, round(scale, 9)) for family, scale in script.draws[number])
                assert priced == drawn, f"step {number + 1} draws {drawn} and charges {priced}"
                n_repeated += sum(release.repeats is not None for release in made)
                window = windows[min(number, len(windows) - 1)]
                n_moved = min(facts.max_cells, facts.n_cells if window.active is None else int(window.active.sum()))
                for event in noisy:
                    minimum = np.sqrt(n_moved) if event.is_gaussian else n_moved
                    is_covered = float(event.sensitivity) >= minimum * (1 - 1e-12)
                    assert is_covered, f"{event} is charged where {minimum:g} may move"
            is_coarse = isinstance(subject.mechanism, Chain) and subject.mechanism.n_merged > 1
            is_scripted = subject.mechanism.guarantee.adaptive and not is_coarse
            assert n_repeated > 0 or not is_scripted, "the script makes some windows repeat"


def decisions_read_releases_alone(subject: Subject) -> None:
    """Check that decisions and state depend only on earlier releases and on query answers that were charged."""
    if not subject.mechanism.guarantee.adaptive:
        return
    for (facts, windows), first in product(worlds(subject), (0, 1)):
        courses = []
        for counts in (counts_for(seed=1), counts_for(seed=2)[::-1] * 3):
            script: Any = runs.ScriptedNoise(first)
            steps = step_through(subject.mechanism, counts, facts, windows, script)
            courses.append([(contents(made), encode_state(*FORMAT, state)) for made, state in steps])
        assert courses[0] == courses[1], "other counts, other decisions, though all releases were the same"


def cells_have_noise_of_their_own(subject: Subject) -> None:
    """Check that the noise of different cells is uncorrelated across many keys."""
    n_cells, n_keys, rows = 12, 64, []
    facts, counts = facts_for(6, n_cells, landmarks=(2, 4)), counts_for(6, n_cells)
    for number in range(n_keys):
        rekeyed = replace(subject, source=replace(subject.source, configuration=b"key %d" % number))
        steps = step_through(rekeyed.mechanism, counts, facts, facts.windows(), rekeyed.source)
        releases = next(made for made, _ in steps if made)
        if releases[0].noise == "none":
            return
        rows.append(Interpretation.of(subject.mechanism).noise_in(matrix_of(releases, counts), counts)[0])
    together = np.corrcoef(np.array(rows).T)
    # Of independent noise this happens once in 10⁹ runs.
    assert np.abs(together[np.triu_indices(n_cells, 1)]).max() < 0.8, "two cells share their noise"


def reads_what_it_says(subject: Subject) -> None:
    """Check that releases do not depend on landmarks or budget periods unless the mechanism declares that they do."""

    def released_with(**changes: Any) -> list[tuple[Any, ...]]:
        facts = facts_for(**{"landmarks": ()} | changes)
        # The same noise whatever it is bound to: what differs then is read.
        made, _ = released(replace(subject, source=runs.ScriptedNoise()), counts_for(), facts)
        return contents([replace(release, landmark=False) for release in made])  # that one is a landmark is no secret

    mechanism = subject.mechanism
    steps = (mechanism.reader, *mechanism.after) if isinstance(mechanism, Chain) else (mechanism,)
    given = {"landmarks": (3, 4, 9, 11), "budget_period": 6}
    for key, value in given.items():
        others = {name: one for name, one in given.items() if name != key}
        differs = any(released_with(**{key: value}, **rest) != released_with(**rest) for rest in ({}, others))
        read = {name for step in steps for name in step.guarantee.unit.reads}
        assert key in read or not differs, f"{key} is read and not declared"


def parameters_are_checked(subject: Subject) -> None:
    """Check that out-of-range parameter values are rejected with an error that names the parameter."""
    for name, declared in parameters_of(type(subject.mechanism)).items():
        outside: list[Any] = [limit for limit in (declared.above, declared.below) if limit is not None]
        outside += [limit - 1 for limit in (declared.above, declared.at_least) if limit is not None]
        outside += [limit + 1 for limit in (declared.below, declared.at_most) if limit is not None]
        outside += [float("nan"), "text", True] if outside else []
        for wrong in outside if declared.choices is None else ["no such choice"]:
            refusal = None
            try:
                replace(subject.mechanism, **{name: wrong})
            except ParameterError as error:
                refusal = error
            assert refusal is not None, f"{name}={wrong!r} is taken"
            assert refusal.field == (declared.key or name), f"{name}={wrong!r} is refused under {refusal.field}"
            assert declared.expected() in str(refusal), f"{refusal} does not say what {name} must be"


def is_documented(subject: Subject) -> None:
    """Check that the docstring has a summary, every parameter and an accurate Privacy paragraph."""
    plugin, guarantee = type(subject.mechanism), subject.mechanism.guarantee
    privacy = check_documentation(plugin).lower()
    if guarantee.exists:
        assert guarantee.theorem != "none", "the guarantee has no theorem"
        assert "unit" in privacy or "user" in privacy, "the Privacy paragraph does not name the unit"
        author = guarantee.theorem.split()[0].rstrip(",")
        assert author in (inspect.getdoc(plugin) or ""), f"the docstring does not say whose theorem it is: {author}"
    else:
        assert "none" in privacy or "no guarantee" in privacy, "the Privacy paragraph does not say that there is none"


def check_documentation(plugin: type) -> str:
    """Return the Privacy paragraph of a plug-in's docstring. Raise `AssertionError` if anything is missing."""
    text = inspect.getdoc(plugin) or ""
    first = text.split("\n")[0]
    assert first.endswith("."), "the first line is not one sentence"
    assert len(first) < 130, "the first line is too long"
    assert "**Privacy.**" in text, "there is no Privacy paragraph"
    for name, declared in parameters_of(plugin).items():
        if declared.choices is None or len(declared.choices) > 1:
            assert (declared.key or name) in text, f"the parameter {name} is not described"
    return text.split("**Privacy.**")[1].split("\n\n")[0]


def keeps_by_hash_alone(subject: Subject) -> None:
    """Check that the mask of an event step depends on memberships and hashes but not on their order."""
    rng = np.random.default_rng(4)
    users, cells = rng.integers(0, 400, 1000), rng.integers(0, 20, 1000)
    hashes = rng.integers(0, 2**64, 1000, dtype=np.uint64)
    window, order = facts_for().windows()[0], rng.permutation(1000)
    given = [array.copy() for array in (users, cells, hashes)]
    mask = subject.mechanism.keep(users, cells, window, hashes)
    assert (mask.dtype.kind, mask.shape) == ("b", users.shape), "it keeps or drops each membership"
    same = all(np.array_equal(array, copy) for array, copy in zip((users, cells, hashes), given))
    assert same, "users, cells or hashes were changed"
    shuffled = subject.mechanism.keep(users[order], cells[order], window, hashes[order])
    assert np.array_equal(shuffled, mask[order]), "what is kept is not a function of the membership and its hash"


def samples_anew_in_every_window_and_configuration(subject: Subject) -> None:
    """Check that event steps draw independent samples for each window and configuration."""
    n = 4000
    users, cells = np.arange(n) % 500, np.arange(n) // 500
    window = facts_for().windows()[0]
    masks = []
    for configuration, start in ((b"one", 0), (b"one", 3_600_000), (b"one", 86_400_000), (b"other", 0)):
        source = replace(subject.source, configuration=configuration)
        hashes = source.membership_hashes(users, np.full(n, start), cells)
        masks.append(subject.mechanism.keep(users, cells, window, hashes))
    if np.all(masks):
        return  # it drops nothing
    together: Any = np.corrcoef(masks)
    largest = np.abs(together[np.triu_indices(len(masks), 1)]).max()
    assert largest < 6 / np.sqrt(n), "what is kept in one window, run or day tells of another"


def reads_releases_alone(subject: Subject) -> None:
    """Check that post-processing changes only values, and not charges, windows, actions, masks or its input."""
    step, facts = subject.mechanism, facts_for()
    assert isinstance(step, Postprocess), "it is no post-processing"
    windows = [replace(window, active=np.arange(5) % 4 != window.index % 4) for window in facts.windows()]
    state = step.start(facts)
    for release in released(subject, counts_for(), facts, windows, mechanism=DiscreteLaplace(epsilon=1.0))[0]:
        release = replace(release, standard_deviation=np.where(np.isnan(release.values), np.nan, 1.4))
        before = [runs.content(release), encode_state(*FORMAT, state)]
        shown, after = step.process(release, state)
        assert [runs.content(release), encode_state(*FORMAT, state)] == before, "a release or the state was changed"
        of_counts = ("values", "standard_deviation", "alarm")
        kept = {name: value for name, value in vars(release).items() if name not in of_counts}
        assert all(getattr(shown, name) is value for name, value in kept.items()), "more than values was changed"
        assert np.array_equal(np.isnan(shown.values), np.isnan(release.values)), "inactive sensors stay inactive"
        if not step.reads_noise:  # which may know better
            moved = np.abs(shown.values - np.maximum(release.values, 0)) > 1.4
            wider: Any = shown.standard_deviation
            assert np.all(wider[moved] > 1.4), "intervals hold less than before: return self.released_as(release, …)"
        assert (shown.alarm is not None) == step.raises_alarms, "raises_alarms does not say whether there is an alarm"
        state = after


#: What holds of every step.
GENERAL = (parameters_are_checked, is_documented)
#: What holds of a mechanism on counts.
COUNTS = (
    resumes_from_encoded_state,
    leaves_inputs_alone,
    state_does_not_grow,
    charges_stay_within_worst_charge,
    without_limits_gives_the_ideal,
    noise_has_the_declared_scale,
    charges_cover_the_noise,
    a_retry_draws_the_same_noise,
    a_changed_count_draws_independent_noise,
    replicas_equal_separate_runs,
    every_window_is_released_once,
    every_draw_is_charged_and_every_charge_is_drawn,
    decisions_read_releases_alone,
    cells_have_noise_of_their_own,
    reads_what_it_says,
)
#: What holds of a step on memberships before they are counted, and of one after the noise.
EVENTS = (keeps_by_hash_alone, samples_anew_in_every_window_and_configuration)
POSTPROCESSING = (reads_releases_alone,)
#: What holds of several steps as of one; what single steps show without noise is checked of each by itself.
CHAINS = tuple(
    check
    for check in COUNTS
    if check not in (without_limits_gives_the_ideal, noise_has_the_declared_scale, charges_cover_the_noise)
)


def checks_for(step: ChainStep) -> tuple[Check, ...]:
    """Return the checks for a step: a mechanism, a chain, a step on events or post-processing."""
    if isinstance(step, Chain):
        # What learns from noisy counts may move all cells together, however independent their noise.
        learns = any(after.reads_noise for after in step.after)
        return tuple(check for check in CHAINS if not (learns and check is cells_have_noise_of_their_own))
    if isinstance(step, EventStep):
        return GENERAL + EVENTS
    if isinstance(step, Postprocess):
        return GENERAL + POSTPROCESSING
    return GENERAL + (() if step.guarantee.on_points else COUNTS)


def cases_of(step: ChainStep) -> Iterator[tuple[Subject, Check]]:
    """Yield every check of a step. Post-processing is checked a second time after a mechanism with integer noise."""
    yield from ((Subject(step), check) for check in checks_for(step))
    if isinstance(step, Postprocess):
        chain = Chain.of((DiscreteLaplace(epsilon=1.0), step))
        on_noise = (a_changed_count_draws_independent_noise, cells_have_noise_of_their_own)
        yield from ((Subject(chain), check) for check in checks_for(chain) if check not in on_noise)

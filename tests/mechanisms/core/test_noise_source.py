"""Noise as a function of key and data: equal steps draw equal noise, others independent noise."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.mechanisms.core import noise as noise_digest
from penstock.mechanisms.core import noise as noise_module
from penstock.mechanisms.core.noise import Noise, NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey, new_key_file
from penstock.mechanisms.core.plugin import ParameterError

N = 1000
DRAWS: dict[str, Callable[[Noise, tuple[int, ...]], np.ndarray[Any, Any]]] = {
    "discrete_laplace": lambda noise, shape: noise.discrete_laplace(30.0, shape),
    "wide discrete_laplace": lambda noise, shape: noise.discrete_laplace(1e5, shape),
    "discrete_gaussian": lambda noise, shape: noise.discrete_gaussian(3.0, shape),
    "wide discrete_gaussian": lambda noise, shape: noise.discrete_gaussian(2000.0, (*shape[:-1], 20)),
    "uniform": lambda noise, shape: noise.uniform(shape),
}
REAL_DRAWS = {
    "laplace": lambda noise, shape: noise.laplace(2.0, shape),
    "gaussian": lambda noise, shape: noise.gaussian(2.0, shape),
    "planar_laplace": lambda noise, shape: noise.planar_laplace(0.01, shape),
}
EVERY_DRAW = pytest.mark.parametrize("draw", [pytest.param(d, id=n) for n, d in (DRAWS | REAL_DRAWS).items()])


#: What every machine must draw: released noise may not depend on the processor or a library's rounding.
GOLDEN = {
    "laplace": [12, 59, 73, -17, -47, 11, -13, 40],
    "gaussian": [-43, -63, 4, 15, -29, 2, -25, 17],
}


def source(**changes: Any) -> NoiseSource:
    arguments: dict[str, Any] = {
        "key": NoiseKey.from_seed(7),
        "configuration": b"c",
        "stream": "s",
        "exact": True,
    } | changes
    return NoiseSource(arguments.pop("key"), **arguments)


def bound(place: dict[str, Any] | None = None, **changes: Any) -> Noise:
    arguments: dict[str, Any] = {
        "window_start": 0,
        "window_end": 10,
        "step": "step",
        "counts": np.arange(5),
        "state": {"r": np.ones(2)},
    }
    return source(**changes).at(**(arguments | (place or {})))


def test_retried_step_draws_the_same_bytes() -> None:
    first, again = bound(), bound()
    for _ in range(2):
        assert first.discrete_laplace(30.0, N).tobytes() == again.discrete_laplace(30.0, N).tobytes()


@pytest.mark.parametrize(
    "place",
    [
        {"counts": np.array([0, 1, 2, 3, 5])},
        {"counts": np.arange(5.0)},
        {"counts": np.arange(5).reshape(1, 5)},
        {"state": {"r": np.array([1.0, 1.0000000001])}},
        {"state": {"q": np.ones(2)}},
        {"state": {}},
        {"window_start": 1},
        {"window_end": 11},
        {"step": "finish"},
    ],
)
def test_any_other_input_draws_independent_noise(place: dict[str, Any]) -> None:
    assert_independent(bound().discrete_laplace(30.0, N), bound(place).discrete_laplace(30.0, N))


@pytest.mark.parametrize(
    "change",
    [{"key": NoiseKey.from_seed(8)}, {"configuration": b"d"}, {"stream": "t"}, {"stream": "", "configuration": b"cs"}],
)
def test_any_other_source_draws_independent_noise(change: dict[str, Any]) -> None:
    assert_independent(bound().discrete_laplace(30.0, N), bound(**change).discrete_laplace(30.0, N))


def of_points(place: dict[str, Any] | None = None, **changes: Any) -> np.ndarray[Any, Any]:
    """Noise of the second of two users at one timestamp."""
    arguments: dict[str, Any] = {
        "index": 1,
        "users": np.array([[4], [5]]),
        "times": np.array([0, 10]),
        "points": np.array([[39.9, 116.4], [39.9, 116.5]]),
        "state": {"r": np.ones(2)},
    }
    drawn: np.ndarray[Any, Any] = source(**changes).at_points(**(arguments | (place or {}))).gaussian(30.0, (2, N))
    return drawn[1]


@pytest.mark.parametrize(
    "place",
    [
        {"index": 2},
        {"users": np.array([[4], [6]])},
        {"times": np.array([0, 11])},
        {"points": np.array([[39.9, 116.4], [39.9, 116.500001]])},
        {"state": {"r": np.array([1.0, 1.0000000001])}},
        {"state": {"q": np.ones(2)}},
        {"state": {}},
    ],
)
def test_any_other_point_draws_independent_noise(place: dict[str, Any]) -> None:
    assert_independent(of_points(), of_points(place))
    assert_independent(of_points(), of_points(configuration=b"d"))
    # What another user does is no part of it.
    others = {"users": np.array([[9], [5]]), "times": np.array([7, 10]), "state": {"r": np.array([3.0, 1.0])}}
    assert of_points().tobytes() == of_points(others).tobytes()


def test_names_only_keys_fail_the_independence_check(monkeypatch: pytest.MonkeyPatch) -> None:
    right = noise_digest.draw_seeds
    monkeypatch.setattr(noise_module, "draw_seeds", lambda key, context, *_: right(key, context, np.zeros(1), {}, None))
    first, late = np.zeros(N, int), np.eye(1, N, 3, dtype=int)[0]
    released = [counts + bound({"counts": counts}).discrete_laplace(30.0, N) for counts in (first, late)]
    assert (released[1] - released[0]).tolist() == late.tolist()  # the late person, exactly
    with pytest.raises(AssertionError):
        assert_independent(*released)


def test_successive_calls_are_independent() -> None:
    noise = bound()
    assert_independent(noise.discrete_laplace(30.0, N), noise.discrete_laplace(30.0, N))


def test_integer_widths_and_memory_layout_do_not_matter() -> None:
    expected = bound().discrete_laplace(1e6, 9)
    for counts in (np.arange(5, dtype=np.uint8), np.arange(5, dtype=">i4"), np.arange(10)[::2] // 2):
        assert (bound({"counts": counts}).discrete_laplace(1e6, 9) == expected).all()


@EVERY_DRAW
def test_replicas_equal_separate_runs(draw: Any) -> None:
    n_replicas, n_cells = 4, 37
    counts = np.arange(n_replicas * n_cells).reshape(n_replicas, n_cells)
    state = {"last": counts * 0.5, "rate": np.arange(n_replicas)}

    def twice(counts: Any, state: Any, n: int | None) -> Any:
        noise = source(exact=False).at(0, 10, "step", counts, state, n)
        shape = (n_cells,) if n is None else (n, n_cells)
        draw(noise, shape)  # a first call with its own rejections must not shift the second
        return draw(noise, shape)

    together = twice(counts, state, n_replicas)
    alone = twice(counts[0], {name: array[0] for name, array in state.items()}, None)
    assert together[0].tobytes() == alone.tobytes()
    others = counts.copy()
    others[:2] += 1
    shorter = twice(others[:3], {name: array[:3] for name, array in state.items()}, 3)
    assert shorter[2].tobytes() == together[2].tobytes()
    assert shorter[1].tobytes() != together[1].tobytes()


@pytest.mark.parametrize("family", ["discrete_laplace", "discrete_gaussian"])
def test_scale_per_replica_equals_separate_runs(family: str) -> None:
    scales = np.array([1.0, 0.0, 40.0, 3000.0])
    counts = np.zeros((4, 20), dtype=int)
    draw = getattr(source().at(0, 1, "step", counts, {}, 4), family)
    together = draw(scales[:, None], counts.shape)
    assert not together[1].any()
    for changed in (scales[0], 7.0):
        others = np.array([changed, 2.0, 40.0, 5.0])
        draw = getattr(source().at(0, 1, "step", counts, {}, 4), family)
        assert (draw(others[:, None], counts.shape)[2] == together[2]).all()
    alone = getattr(source().at(0, 1, "step", counts[0], {}), family)
    assert (alone(1.0, 20) == together[0]).all()


def test_replicas_with_equal_data_draw_independent_noise() -> None:
    drawn = source().at(0, 1, "step", np.zeros((2, 5)), {}, 2).discrete_laplace(30.0, (2, N))
    assert_independent(drawn[0], drawn[1])


def test_pickled_source_draws_the_same() -> None:
    original = source()
    copy = pickle.loads(pickle.dumps(original))
    assert copy == original
    arguments: Any = (0, 1, "step", np.arange(3), {})
    assert (copy.at(*arguments).discrete_laplace(9.0, N) == original.at(*arguments).discrete_laplace(9.0, N)).all()


def test_integer_noise_is_the_same_on_every_machine() -> None:
    for noise in (bound(exact=False), bound(exact=True)):
        assert noise.discrete_laplace(30.0, 8).tolist() == GOLDEN["laplace"]
        assert noise.discrete_gaussian(30.0, 8).tolist() == GOLDEN["gaussian"]


@pytest.mark.parametrize("family", ["laplace", "gaussian", "discrete_laplace", "discrete_gaussian"])
def test_no_scale_no_noise(family: str) -> None:
    noise = bound(exact=False)
    assert not getattr(noise, family)(0.0, N).any()
    some = getattr(noise, family)(np.array([0.0, 5.0] * 200), 400)
    assert not some[::2].any()
    assert some[1::2].any()
    for bad in (np.inf, np.nan, -1.0, np.array([1.0, np.inf] * 200)):
        with pytest.raises(ParameterError, match="finite and not negative"):
            getattr(noise, family)(bad, 400)


def test_planar_laplace_without_privacy_is_no_step() -> None:
    noise = bound(exact=False)
    assert noise.planar_laplace(np.inf, (3, 2)).tolist() == np.zeros((3, 2, 2)).tolist()
    with pytest.raises(ParameterError, match="epsilon"):
        noise.planar_laplace(0.0, 3)


@pytest.mark.parametrize("draw", REAL_DRAWS.values(), ids=REAL_DRAWS)
def test_exact_mode_refuses_real_valued_noise(draw: Any) -> None:
    with pytest.raises(ParameterError, match="discrete_laplace or discrete_gaussian in exact mode"):
        draw(bound(exact=True), (N,))


def test_mode_follows_the_key(tmp_path: Any) -> None:
    deployed = new_key_file(tmp_path / "key")
    assert bound(key=deployed, exact=None).exact
    assert not bound(exact=None).exact
    assert bound(key=deployed, exact=False).laplace(1.0, 3).shape == (3,)


def test_wrong_use_is_named() -> None:
    noise = source().at(0, 1, "step", np.zeros((3, 5)), {"rate": np.zeros(3)}, 3)
    with pytest.raises(ParameterError, match="shape"):
        noise.discrete_laplace(1.0, (4, 5))
    with pytest.raises(ParameterError, match="scale"):
        noise.discrete_laplace(np.ones(4), (3, 5))
    with pytest.raises(ParameterError, match="rate"):
        source().at(0, 1, "step", np.zeros((3, 5)), {"rate": np.zeros(2)}, 3)
    with pytest.raises(ParameterError, match="object array"):
        bound({"state": {"last": np.array([None])}})
    with pytest.raises(ParameterError, match="at most"):
        noise.discrete_laplace(2.0**41, (3, 5))


@pytest.mark.parametrize("name", [name for name in [*DRAWS, *REAL_DRAWS] if name != "wide discrete_gaussian"])
def test_no_cells_no_noise(name: str) -> None:
    assert (DRAWS | REAL_DRAWS)[name](bound(exact=False), (1, 0)).size == 0


def assert_independent(first: Any, second: Any) -> None:
    """Two draws of a wide family share few values and are not correlated."""
    assert (first == second).mean() < 0.1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2

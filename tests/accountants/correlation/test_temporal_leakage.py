"""The leakage function against enumeration of subsets, linear programs, closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog

from penstock.accountants.correlation import hull as row_pairs
from penstock.accountants.correlation.hull import extend_hull, height, leakage_hull, roc_points, upper_hull
from penstock.accountants.correlation.leakage import LeakageFunction
from penstock.accountants.markov import chain_matrix, laplacian_smoothing_matrix
from penstock.mechanisms.core.plugin import ParameterError

ALPHAS = np.array([0.0, 1e-12, 1e-6, 0.01, 0.3, 1.0, 3.0, 10.0, 40.0])


def random_matrix(rng, n):
    """Dirichlet rows of varying concentration, often with zeros, repeated rows or nearly equal rows."""
    matrix = rng.dirichlet(np.full(n, rng.choice([0.1, 1.0, 30.0])), n)
    kind = rng.integers(6)
    if kind == 0:
        matrix *= rng.random((n, n)) < 0.6
        matrix[np.arange(n), rng.integers(n, size=n)] += 0.1
    elif kind == 1:
        matrix = matrix[rng.integers(n, size=n)]
    elif kind == 2:
        matrix = np.eye(n)[rng.permutation(n)] if rng.random() < 0.5 else np.round(matrix * 4) + np.eye(n)
    elif kind == 3:
        matrix = matrix[:1] * (1 + 1e-6 * rng.random((n, n)))
    return matrix / matrix.sum(axis=1, keepdims=True)


def by_enumeration(matrix, alphas):
    """Largest log ratio over every subset and every ordered pair of rows."""
    n = len(matrix)
    subsets = np.array(list(itertools.product([0.0, 1.0], repeat=n)))
    mass = subsets @ matrix.T
    mass = np.clip(mass, 0.0, 1.0)
    k = np.expm1(alphas)[:, None, None, None]
    return (np.log1p(k * mass[:, :, None]) - np.log1p(k * mass[:, None, :])).max(axis=(1, 2, 3))


def test_equals_subset_enumeration_on_two_thousand_matrices():
    rng = np.random.default_rng(1)
    for _ in range(2000):
        matrix = random_matrix(rng, int(rng.integers(1, 7)))
        leakage = LeakageFunction(matrix)
        np.testing.assert_allclose(leakage(ALPHAS), by_enumeration(matrix, ALPHAS), rtol=1e-9, atol=1e-14)
        assert [leakage(float(alpha)) for alpha in ALPHAS] == pytest.approx(leakage(ALPHAS).tolist(), rel=1e-14)


def by_linear_program(matrix, alpha):
    """Cao's linear-fractional program for each ordered pair: largest q·y with d·y = 1, m <= y <= exp(alpha)·m."""
    n = len(matrix)
    bounds = np.vstack(
        [
            np.column_stack([np.eye(n), np.full(n, -math.exp(alpha))]),
            np.column_stack([-np.eye(n), np.ones(n)]),
        ]
    )
    largest = 1.0
    for q, d in itertools.permutations(matrix, 2):
        solution = linprog(
            -np.append(q, 0.0), A_ub=bounds, b_ub=np.zeros(2 * n), A_eq=np.append(d, 0.0)[None], b_eq=[1.0],
            method="highs-ds", options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )  # fmt: skip
        assert solution.success
        largest = max(largest, -solution.fun)
    return math.log(largest)


def without_tiny_entries(matrix):
    """The solver drops coefficients below 1e-9, so the matrices it is compared on have none."""
    matrix = np.where(matrix < 1e-6, 0.0, matrix)
    return matrix / matrix.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
def test_equals_the_linear_program(n):
    rng = np.random.default_rng(n)
    for alpha in (0.05, 0.5, 2.0):
        matrix = without_tiny_entries(random_matrix(rng, n))
        assert LeakageFunction(matrix)(alpha) == pytest.approx(by_linear_program(matrix, alpha), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_equals_the_linear_program_up_to_thirty_states(seed):
    rng = np.random.default_rng(seed)
    matrix = without_tiny_entries(random_matrix(rng, int(rng.integers(20, 31))))
    for alpha in (0.1, 1.0):
        assert LeakageFunction(matrix)(alpha) == pytest.approx(by_linear_program(matrix, alpha), abs=1e-9)


def unpruned(matrix):
    """The hull from every pair, without the test that drops pairs."""
    hull = np.zeros((1, 2))
    for row in matrix:
        hull = extend_hull(hull, roc_points(np.broadcast_to(row, matrix.shape), matrix))
    return LeakageFunction.of_vertices(np.column_stack((hull[:, 0], hull.sum(axis=1))))


def matrices_of_many_kinds(n, rng):
    counts = rng.poisson(0.3, (n, n)) + 0.01
    walk = rng.poisson(20 * chain_matrix(n, 0.1)) + 0.01
    shuffled = np.array([rng.permutation(np.arange(1.0, n + 1)) for _ in range(n)])
    uniform = rng.random((n, n))
    cut = rng.random((n, n)) * (rng.random((n, n)) < 0.7) + np.eye(n)
    return {
        "dirichlet": rng.dirichlet(np.ones(n), n),
        "spiky": rng.dirichlet(np.full(n, 0.1), n),
        "flat": rng.dirichlet(np.full(n, 100.0), n),
        "chain": chain_matrix(n, 0.1),
        "smoothing": laplacian_smoothing_matrix(n, 0.01),
    } | {
        name: weight / weight.sum(axis=1, keepdims=True)
        for name, weight in {
            "counts": counts,
            "walk": walk,
            "shuffled": shuffled,
            "uniform": uniform,
            "cut": cut,
        }.items()
    }


@pytest.mark.parametrize("n", [30, 60])
def test_pruning_changes_nothing(n):
    alphas = np.concatenate(([1e-12, 1e-3], np.linspace(0.01, 60, 400), [800.0, 1e4]))
    for name, matrix in matrices_of_many_kinds(n, np.random.default_rng(n)).items():
        np.testing.assert_allclose(
            LeakageFunction(matrix)(alphas), unpruned(matrix)(alphas), rtol=1e-10, atol=1e-12, err_msg=name
        )


def test_pruning_drops_most_pairs_and_a_rule_for_one_alpha_would_lose_vertices():
    matrix = np.random.default_rng(0).dirichlet(np.ones(60), 60)
    _, first, _ = row_pairs.candidate_pairs(matrix)
    assert len(first) <= 60
    distance = np.abs(matrix[:, None] - matrix).sum(axis=2) / 2
    q, d = np.unravel_index(distance.argmax(), distance.shape)
    only_farthest = LeakageFunction.of_rows(matrix[[q, d]])
    assert only_farthest(0.0001) == pytest.approx(LeakageFunction(matrix)(0.0001), rel=1e-4)
    assert only_farthest(10.0) < 0.9 * LeakageFunction(matrix)(10.0)


def test_hull_is_small_and_in_order():
    vertices = LeakageFunction(np.random.default_rng(0).dirichlet(np.ones(50), 50)).vertices
    assert 10 < len(vertices) < 100
    slopes = np.diff(vertices[:, 1]) / np.diff(vertices[:, 0])
    assert (np.diff(slopes) < 0).all()
    assert slopes[-1] > 1
    rebuilt = LeakageFunction.of_vertices(vertices)
    assert rebuilt(2.0) == pytest.approx(LeakageFunction(np.random.default_rng(0).dirichlet(np.ones(50), 50))(2.0))


@pytest.mark.parametrize("alpha", [40.0, 700.0, 701.0, 800.0, 1e4, math.inf])
def test_large_losses_reach_their_limit(alpha):
    leakage = LeakageFunction([[0.8, 0.2], [0.1, 0.9]])
    assert leakage(alpha) == pytest.approx(math.log(8), rel=1e-15)
    assert leakage(np.array([alpha]))[0] == pytest.approx(math.log(8), rel=1e-15)


def test_small_losses_keep_their_digits():
    leakage = LeakageFunction([[0.8, 0.2], [0.1, 0.9]])
    assert leakage(1e-12) == pytest.approx(0.7e-12, rel=1e-11)
    close = LeakageFunction([[0.5, 0.5], [0.5 + 1e-9, 0.5 - 1e-9]])
    assert close(1e-12) == pytest.approx(1e-21, rel=1e-6)


@pytest.mark.parametrize("n", [2, 5, 300])
def test_a_permutation_passes_everything_on(n):
    matrix = np.eye(n)[np.random.default_rng(n).permutation(n)]
    for given in (matrix, sparse.csr_array(matrix), sparse.coo_matrix(matrix)):
        alphas = np.array([0.0, 1e-12, 1.0, 699.0, 701.0, 1e4, math.inf])
        np.testing.assert_allclose(LeakageFunction(given)(alphas), alphas, rtol=1e-15)


@pytest.mark.parametrize("matrix", [[[1.0]], [[0.3, 0.7], [0.3, 0.7]], np.full((300, 300), 1 / 300)])
def test_equal_rows_leak_nothing(matrix):
    leakage = LeakageFunction(matrix)
    assert leakage.vertices.shape == (0, 2)
    assert leakage(5.0) == 0.0
    assert leakage(np.array([0.0, math.inf])).tolist() == [0.0, 0.0]
    assert leakage.supremum(0.5) == 0.5


def test_sparse_and_dense_agree():
    dense = np.random.default_rng(3).random((40, 40)) * (np.random.default_rng(4).random((40, 40)) < 0.8)
    dense /= dense.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(LeakageFunction(sparse.csr_matrix(dense)).vertices, LeakageFunction(dense).vertices)


def test_a_large_sparse_walk_never_becomes_dense():
    n = 20_000
    step = sparse.diags_array([0.5, 0.5], offsets=[0, 1], shape=(n, n)).tolil()
    step[n - 1, n - 1] = 1.0
    assert LeakageFunction(step).vertices.tolist() == [[0.0, 1.0]]


def test_very_small_probabilities_give_finite_figures():
    leakage = LeakageFunction([[1.0, 1e-200], [1e-250, 1.0]])
    assert leakage(1e4) == pytest.approx(250 * math.log(10), rel=1e-12)
    tiny = LeakageFunction([[1.0, 1e-308], [5e-324, 1.0]])
    assert tiny(1e4) == 1e4


def test_leakage_is_increasing_and_never_above_alpha():
    rng = np.random.default_rng(5)
    alphas = np.concatenate(([0.0], np.logspace(-12, 4, 500)))
    for _ in range(50):
        leakage = LeakageFunction(random_matrix(rng, 5))(alphas)
        assert (np.diff(leakage) >= -1e-15).all()
        assert (leakage <= alphas).all()
        assert np.isfinite(leakage).all()


@pytest.mark.parametrize(
    ("vertex", "epsilon", "expected"),
    [
        ((0.1, 0.8), 0.5, None),  # d > 0: always finite
        ((0.0, 0.8), 0.2, math.log(0.2 * math.exp(0.2) / (1 - 0.8 * math.exp(0.2)))),  # d = 0, epsilon < ln(1/q)
        ((0.0, 0.8), 0.2232, math.inf),  # d = 0, epsilon > ln(1/q)
        ((0.0, 1.0), 1e-9, math.inf),  # d = 0, q = 1
    ],
)
def test_the_four_cases_of_the_supremum(vertex, epsilon, expected):
    leakage = LeakageFunction.of_vertices([vertex])
    d, q = vertex
    if expected is None:
        grown = math.exp(epsilon)
        expected = math.log(
            (math.sqrt(4 * d * grown * (1 - q) + (d + q * grown - 1) ** 2) + d + q * grown - 1) / (2 * d)
        )
    assert leakage.supremum(epsilon) == pytest.approx(expected, rel=1e-12)


def test_the_supremum_is_where_the_recursion_settles():
    rng = np.random.default_rng(6)
    for _ in range(100):
        leakage = LeakageFunction(random_matrix(rng, 4))
        for epsilon in (1e-6, 0.1, 1.0, 30.0, 2000.0):
            supremum = leakage.supremum(epsilon)
            if math.isinf(supremum):
                assert leakage.vertices[0, 0] == 0.0
                continue
            assert leakage(supremum) + epsilon == pytest.approx(supremum, rel=1e-9)
            loss = 0.0
            for _ in range(200):
                loss = leakage(loss) + epsilon
                assert loss <= supremum * (1 + 1e-12)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5], [0.5, 0.6]], r"row 1 with sum 1.1"),
        ([[0.5, 0.5], [-0.5, 1.5]], r"row 1 with entry -0.5"),
        ([[0.5, np.nan], [0.5, 0.5]], r"row 0 with entry nan"),
        ([[0.5, 0.5]], r"shape \(1, 2\)"),
        (np.empty((0, 0)), r"shape \(0, 0\)"),
        ([["a", "b"], ["c", "d"]], r"square matrix of numbers"),
        (sparse.csr_array([[0.5, 0.5], [0.5, 0.6]]), r"row 1 with sum 1.1"),
        (sparse.csr_array([[0.0, 1.0], [-0.5, 1.5]]), r"row 1 with entry -0.5"),
    ],
)
def test_a_matrix_that_is_not_stochastic_is_refused(matrix, message):
    with pytest.raises(ParameterError, match=message):
        LeakageFunction(matrix)


@pytest.mark.parametrize("alpha", [-1.0, math.nan, np.array([1.0, -2.0]), np.array([math.nan])])
def test_a_loss_that_is_none_is_refused(alpha):
    with pytest.raises(ParameterError, match="alpha"):
        LeakageFunction([[0.8, 0.2], [0.1, 0.9]])(alpha)


def test_vertices_outside_the_unit_square_and_a_negative_epsilon_are_refused():
    with pytest.raises(ParameterError, match="vertices"):
        LeakageFunction.of_vertices([[0.1, 1.2]])
    with pytest.raises(ParameterError, match="epsilon"):
        LeakageFunction([[1.0]]).supremum(-0.1)


@pytest.mark.parametrize("kind", ["random", "alike", "ties", "zeros", "steep"])
def test_the_hull_of_many_rows_is_that_of_every_pair(kind):
    rng = np.random.default_rng(5)
    rows = rng.dirichlet(np.full(25, 0.02 if kind == "steep" else 1.0), 40)
    if kind == "alike":
        rows = np.full((40, 25), 0.04) + 1e-12 * (rows - 0.04)
    elif kind == "ties":
        rows = np.full((25, 25), 0.5 / 25) + 0.5 * np.eye(25)
    elif kind == "zeros":
        rows = np.where(rows < 0.03, 0.0, rows)
        rows /= rows.sum(axis=1, keepdims=True)
    pairs = [(q, d) for q in range(len(rows)) for d in range(len(rows)) if q != d]
    first, second = np.array(pairs).T
    origin = np.zeros((1, 2))
    exact = upper_hull(np.concatenate([origin, roc_points(rows[first], rows[second])]))
    hull = np.concatenate([origin, leakage_hull(rows)])
    assert (height(hull, exact) <= 1e-12 * exact.sum(axis=1)).all()
    assert (height(exact, hull) <= 1e-12 * hull.sum(axis=1)).all()

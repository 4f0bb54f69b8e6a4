"""Long-run behaviour of a Markov chain: its stationary distribution and its spectral gap."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mechanisms.core.errors import ParameterError

FloatArray = NDArray[np.float64]
_DENSE_LIMIT = 512


def stationary_distribution(transition: Any, start: FloatArray | None = None) -> FloatArray:
    """Long-run share of time in each location, entrywise accurate.

    Parameters
    ----------
    transition
        (n_locations, n_locations), rows sum to 1; dense or SciPy sparse.
    start
        (n_locations,) distribution that decides between several closed classes (uniform when left out);
        with one closed class it changes nothing.

    Returns
    -------
    (n_locations,) distribution. O(M^3) time per closed class of up to 512 locations, one sparse solve beyond.

    Examples
    --------
    >>> stationary_distribution(np.array([[0.9, 0.1], [0.3, 0.7]]))
    array([0.75, 0.25])

    Source: Grassmann, Taksar, Heyman (1985): elimination without subtraction, so tiny probabilities keep their digits.
    """
    from scipy.sparse import csgraph  # with the solvers below a fifth of what starting a command takes

    matrix = sparse.csr_array(transition)
    n_locations = matrix.shape[0]
    start = np.full(n_locations, 1 / n_locations) if start is None else np.asarray(start, dtype=float)
    n_classes, label = csgraph.connected_components(matrix, directed=True, connection="strong")
    if n_classes == 1:
        return _irreducible(matrix)
    edges = matrix.tocoo()
    is_open = np.zeros(n_classes, dtype=bool)
    is_open[label[edges.row[label[edges.row] != label[edges.col]]]] = True
    share = _absorbed(matrix, start, label, is_open)
    result = np.zeros(n_locations)
    for closed in np.flatnonzero(~is_open & (share > 0)):
        members = np.flatnonzero(label == closed)
        result[members] = share[closed] * _irreducible(matrix[members][:, members])
    return np.asarray(result / result.sum())


def _absorbed(matrix: Any, start: FloatArray, label: NDArray[Any], is_open: NDArray[np.bool_]) -> FloatArray:
    """Probability of ending in each class, from the expected visits to the transient locations."""
    from scipy.sparse import linalg as sparse_linalg

    transient = np.flatnonzero(is_open[label])
    landing = start.copy()
    if transient.size:
        inner = sparse.eye_array(transient.size, format="csc") - matrix[transient][:, transient].T.tocsc()
        visits = np.atleast_1d(sparse_linalg.spsolve(inner.tocsc(), start[transient]))
        landing = start + matrix[transient].T @ visits
        landing[transient] = 0.0
    return np.bincount(label, np.maximum(landing, 0.0), is_open.size).astype(float)


def _irreducible(matrix: Any) -> FloatArray:
    """Stationary distribution of one closed class."""
    n_locations = matrix.shape[0]
    if n_locations > _DENSE_LIMIT:
        from scipy.sparse import linalg as sparse_linalg

        balance = (sparse.eye_array(n_locations, format="csr") - matrix).T.tolil()
        balance[-1, :] = 1.0
        solution = sparse_linalg.spsolve(balance.tocsc(), np.eye(1, n_locations, n_locations - 1)[0])
        positive = np.maximum(solution, 0.0)
        return np.asarray(positive / positive.sum())
    rest = matrix.toarray()
    for last in range(n_locations - 1, 0, -1):
        rest[:last, last] /= rest[last, :last].sum()
        rest[:last, :last] += np.outer(rest[:last, last], rest[last, :last])
    result = np.ones(n_locations)
    for last in range(1, n_locations):
        result[last] = result[:last] @ rest[:last, last]
    return np.asarray(result / result.sum())


def spectral_gap(transition: Any) -> float:
    """1 minus the second largest modulus of an eigenvalue: how fast the chain forgets where it was.

    Parameters
    ----------
    transition
        (n_locations, n_locations), rows sum to 1; dense or SciPy sparse. A chain of one location has gap 1.

    Returns
    -------
    A number in [0, 1]; 0 for a chain that never forgets (several closed classes, or periodic). O(M^3), or the two
    leading eigenvalues by Arnoldi iteration above 512 locations.

    Examples
    --------
    >>> round(spectral_gap(np.array([[0.9, 0.1], [0.3, 0.7]])), 12)
    0.4
    """
    n_locations = transition.shape[0]
    if transition.shape != (n_locations, n_locations):
        raise ParameterError("transition", transition.shape, "a square matrix")
    if n_locations == 1:
        return 1.0
    if sparse.issparse(transition) and n_locations > _DENSE_LIMIT:
        from scipy.sparse import linalg as sparse_linalg

        moduli = np.abs(sparse_linalg.eigs(transition.astype(float), k=2, which="LM", return_eigenvectors=False))
    else:
        dense = transition.toarray() if sparse.issparse(transition) else np.asarray(transition, dtype=float)
        moduli = np.abs(np.linalg.eigvals(dense))
    return float(np.clip(1.0 - np.sort(moduli)[-2], 0.0, 1.0))

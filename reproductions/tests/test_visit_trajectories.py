"""One place per user and window from visits."""

from __future__ import annotations

from reproductions.visits import visit_trajectories


def test_trajectories_from_visits() -> None:
    users = [3, 3, 3, 3, 8, 8, 1, 8]
    windows = [0, 0, 0, 2, 0, 1, 5, -1]
    places = [10, 20, 20, 30, 10, 10, 10, 10]
    trajectories, people, top = visit_trajectories(users, windows, places, 4, n_top=2, min_windows=1)
    assert top.tolist() == [10, 20]
    assert people.tolist() == [3, 8]
    # user 3: 20 twice beats 10 once; place 30 is elsewhere; user 1 is seen too late
    assert trajectories.tolist() == [[1, 2, 2, 2], [0, 0, 2, 2]]
    assert visit_trajectories(users, windows, places, 4, 2, 2)[1].tolist() == [8]

"""Reading ahead changes neither order nor errors, and leaves no thread behind."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from pipeline.prefetch import prefetch


def n_threads() -> int:
    return sum(thread.name == "penstock-prefetch" for thread in threading.enumerate())


@pytest.mark.parametrize("n_ahead", [1, 5])
def test_items_come_in_order(n_ahead):
    assert list(prefetch(range(1000), n_ahead)) == list(range(1000))
    assert n_threads() == 0


def test_an_error_comes_after_the_items_before_it():
    def broken():
        yield 1
        raise OSError("the disk is gone")

    found = []
    with pytest.raises(OSError, match="the disk is gone"):
        found.extend(prefetch(broken()))
    assert found == [1]
    assert n_threads() == 0


def test_a_consumer_may_stop_early():
    items = prefetch(count())
    assert next(items) == 0
    items.close()
    assert n_threads() == 0


def test_what_reads_ahead_itself_is_stopped_too():
    def inner():
        with prefetch(count()) as items:
            yield from items

    items = prefetch(inner())
    assert next(items) == 0
    items.close()
    assert n_threads() == 0


def test_no_more_is_made_than_may_wait():
    made = []
    items = prefetch((made.append(i) or i for i in range(100)), 2)
    next(items)
    items.close()
    assert len(made) <= 5


def test_items_are_made_before_anybody_asks():
    made = threading.Event()
    with prefetch((made.set() or i for i in range(3)), 0) as items:
        assert made.wait(10)
        assert list(items) == [0, 1, 2]
    assert n_threads() == 0

"""What the ``penstock`` command tells its caller."""

#: Done; failed; wrong use or configuration; stopped because a budget would be exceeded; interrupted, can be continued.
DONE, FAILED, WRONG_USE, STOPPED, INTERRUPTED = 0, 1, 2, 3, 4

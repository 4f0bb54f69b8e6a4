"""The data flow from event sources to output files, and the exit codes of the ``penstock`` command."""

#: Done; failed; wrong use or configuration; stopped because a budget would be exceeded; interrupted, can be continued.
DONE, FAILED, WRONG_USE, STOPPED, INTERRUPTED = 0, 1, 2, 3, 4

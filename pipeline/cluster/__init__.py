"""The same run as a streaming job on a cluster: an unbounded source, checkpoints of the engine, releases as ever."""

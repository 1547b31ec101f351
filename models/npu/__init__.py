"""Models for neural processing units: what such a chip can run of a graph, in which numbers, and the compiled form."""

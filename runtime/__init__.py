"""Graph partition, cost models, scheduling, kernels and profiling."""

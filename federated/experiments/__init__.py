"""Many runs together: sweeps over a config's keys, and comparisons of runs over their seeds."""

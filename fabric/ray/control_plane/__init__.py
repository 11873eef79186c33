"""Ray's control plane as the manager needs it: calls, their answers, whether it is alive."""

"""The commands run, check, init, tune, doctor, runs and node; only `fedpilot` imports them."""

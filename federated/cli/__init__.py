"""The commands of `federated`: run, check, init, tune, doctor, runs, node. Nothing imports them but
the `fedpilot` command itself.
"""

"""The commands run, check, init, tune, doctor, runs and node. Only the `fedpilot` command imports
them.
"""

"""The folder that a run leaves behind: config, rows, states and events, in files that survive a
kill.
"""

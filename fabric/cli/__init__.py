"""The commands `fedpilot cluster` and `fedpilot job`, and what they print. Nothing imports them
but other commands.
"""

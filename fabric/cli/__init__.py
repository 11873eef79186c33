"""The commands `fedpilot cluster` and `fedpilot job`. Only other commands import this package."""

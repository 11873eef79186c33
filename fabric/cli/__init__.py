"""The commands `fedpilot cluster`, `job` and `simulate`. Only commands import this package."""

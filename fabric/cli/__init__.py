"""The commands `fedpilot cluster`, `job`, `queue` and `simulate`; `terminal/` is what they print.

Only commands import this package.
"""

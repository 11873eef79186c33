"""Fakes of Ray's parts, which pass the same contract tests as the real ones."""

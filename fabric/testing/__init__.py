"""Ray's parts without Ray: fakes that pass the contract tests of what they stand for."""

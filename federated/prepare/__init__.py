"""Turn a config into checked inputs before anything starts: data, model, user code, costs,
execution.
"""

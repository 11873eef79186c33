"""Turn a config into checked inputs before anything starts: data, model, the user's code, costs,
and the execution that follows from them.
"""

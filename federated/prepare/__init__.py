"""Turn a config into checked inputs before any start: data, model, user code, costs, execution.

`inputs/` loads and checks, `user_code/` finds and carries the user's own code, and `execution/`
chooses how a chunk is computed. The modules here decide the rest of a run from its config.
"""

"""Turn a config into checked inputs before any start: data, model, user code, costs, execution."""

"""`fedpilot runs`: the commands about runs, of a folder here or of a mediator."""

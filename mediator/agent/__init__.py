"""The site agent: joins a mediator, executes its orders, and manages a runner per run.

Neither importing nor running it imports Ray or torch.
"""

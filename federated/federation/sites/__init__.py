"""Where the sites of a run come from, and what happens to them while it goes on: this process,
several local Ray clusters, or the sites of a mediator.
"""

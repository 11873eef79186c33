"""What an agent does for its mediator: the orders it holds, the runners that work on them, and what
may be asked of the site.
"""

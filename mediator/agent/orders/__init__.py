"""An agent's work for its mediator: orders, the runners that execute them, their traffic."""

"""An agent's work for its mediator: orders, the runners that execute them, the bytes they move."""

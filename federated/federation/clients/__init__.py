"""Single clients in users' hands: VirtualNode, with whom it exchanges, and what it has published.

Orders go through protocols (`NodeOwner`, `Clients`), which a federation here and one at a mediator
both implement.
"""

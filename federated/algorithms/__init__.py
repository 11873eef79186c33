"""How the clients' mean update becomes the next global model: one paper per file."""

from .fedavg import fedavg

__all__ = ["fedavg"]

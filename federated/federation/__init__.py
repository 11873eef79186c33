"""A running federation, as `Federation` gives it to users: its clients, its rounds, what it leaves
behind.

It may import every room of `federated` but the command line.
"""

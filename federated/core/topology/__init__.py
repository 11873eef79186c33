"""Who exchanges with whom: graphs of clients, the weights of their mixing, what they must satisfy.

Pure: nodes are numbers from 0 on, the places of clients in the population. A graph is the same on
every machine, and in every round it is a function of the round's number.
"""

"""Decide which clients there are: their data, groups, shares of sites, and the cohort of a round.

`partitions/` divides one data set over clients; `federated_data/` unites what sites declare.
"""

"""Decide who the clients are: their data, groups, shares of sites, and the cohort of a round."""

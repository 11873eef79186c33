"""Decides how much of a disk stays free, when it is too full to work, and which ended runs stay."""

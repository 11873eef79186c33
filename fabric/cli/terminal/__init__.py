"""Virtual clusters and their jobs on the screen: tables, trees, explanations, words."""

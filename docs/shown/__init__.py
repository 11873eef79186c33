"""What the how-to pages show besides text: pictures of graphs and plans, and tables of figures.

`docs/generate.py` writes it. It is no part of the package.
"""

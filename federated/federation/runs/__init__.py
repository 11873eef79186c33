"""A run from its folder to its result: new, continued from another run, or resumed.

It has a started gang run the rounds (`coordinator`) and writes the record (`run_folder`). It does
not depend on mediators or commands.
"""

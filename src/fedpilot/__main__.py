"""`python -m fedpilot` is the `fedpilot` command."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="fedpilot")

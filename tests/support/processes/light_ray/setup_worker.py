"""Ray's `setup_worker.py`, without an import of Ray: it sets a worker's environment variables.

Ray runs it before each worker that has a runtime environment, and importing Ray twice would take as
long as the rest of the worker's start. What needs more than variables gets Ray's own. Ray
recognizes it by the end of its name.
"""

import json
import os
import sys

CONTEXT = "--serialized-runtime-env-context="
THEIRS = "TESTS_SETUP_WORKER"
"""The variable that names Ray's own."""


def main(arguments: list[str]) -> None:
    """Become the worker that the arguments name."""
    given = [each for each in arguments if each.startswith(CONTEXT)]
    context = json.loads(given[0].removeprefix(CONTEXT)) if given else {}
    variables = context.pop("env_vars", {})
    usual = {"py_executable": sys.executable, "command_prefix": []}
    more = {name: value for name, value in context.items() if value and value != usual.get(name)}
    if more or "--language=PYTHON" not in arguments or "$" in "".join(variables.values()):
        os.execv(sys.executable, [sys.executable, os.environ[THEIRS], *arguments])
    os.environ.update(variables)
    rest = [each for each in arguments if each not in (*given, "--language=PYTHON")]
    os.execv(sys.executable, [sys.executable, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])

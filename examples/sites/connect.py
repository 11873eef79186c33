"""Single clients at the sites of a mediator: each trains where its data is.

It needs the mediator and the sites of the tutorial (docs/tutorial-three-sites.md), and a profile:

    python examples/sites/connect.py here
"""

import sys

import fedpilot

if __name__ == "__main__":
    profile = sys.argv[1] if len(sys.argv) > 1 else None  # None: FEDPILOT_PROFILE, or the default
    with (
        fedpilot.connect(profile) as connection,
        connection.federation("configs/three_sites.yaml") as federation,
    ):
        print(f"{len(federation)} clients")
        for id in ("client_0", "client_7", "client_49"):
            node = federation[id]
            trained = node.train()
            print(f"{id}: {trained.samples} samples, loss {trained.loss:.4f}")
            print(node.explain())

"""A process beside the agent that reports a Ray cluster's resources, as lines of JSON.

`python -m fedpilot.mediator.agent.scans.ray_probe ADDRESS SECONDS` asks the control plane and is
not a driver of the cluster. It ends when its output is closed; the agent kills one that hangs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from fedpilot.fabric import Resources


async def report(address: str, every_s: float) -> None:
    from fedpilot.fabric.core.cluster_state import JobId
    from fedpilot.fabric.ray.control_plane.gcs import Gcs  # which imports Ray

    asking = Gcs(address, JobId(""))
    line: dict[str, Any]
    while True:
        try:
            seen = await asking.observe({})
            line = {
                "machines": sorted(machine.id for machine in seen.machines),
                "total": Resources.total(each.total for each in seen.machines).to_ray(),
                "free": Resources.total(seen.available.values()).to_ray(),
            }
        except Exception as error:  # any error of Ray is the report
            line = {"error": str(error) or type(error).__name__}
        print(json.dumps(line), flush=True)
        await asyncio.sleep(every_s)


if __name__ == "__main__":
    try:
        asyncio.run(report(sys.argv[1], float(sys.argv[2])))
    except (BrokenPipeError, KeyboardInterrupt):
        sys.stderr.close()

"""The decisions of the fabric: pure functions of facts, without Ray, clocks, randomness or logs."""

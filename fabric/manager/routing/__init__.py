"""Routes tasks and actors to placement groups, through a protocol (`Bundles`), without Ray."""

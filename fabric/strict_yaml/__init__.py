"""Strict YAML: reads the files that people write (configs, site files, specs, profiles).

`reading` turns text into plain values with their lines, `records` checks them against a pydantic
model, `schema_problems` and `wording` say what is wrong, `errors` has the form of a problem,
`writing` writes YAML. The room imports nothing of fabric but `errors`.
"""

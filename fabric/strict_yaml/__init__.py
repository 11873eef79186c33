"""Strict YAML: reads the files that people write (configs, site files, specs, profiles).

`reading` turns text into plain values with their lines, `records` checks them against a pydantic
model, `schema_problems` and `wording` describe what is wrong, `errors` has the form of a problem,
`writing` writes YAML. Of fabric, the room imports only `errors`.
"""

"""Strict YAML: reads the files that people write (configs, site files, specs, profiles).

`reading` turns text into plain values and remembers lines, `records` checks them against a pydantic
model, `schema_problems` and `wording` say what is wrong in plain words, `writing` writes YAML.
`problems` has the one form of a problem. The room imports nothing of fabric but `errors`.
"""

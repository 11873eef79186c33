"""Strict YAML: reads the files that people write (configs, site files, specs, profiles).

`reading` gives plain values with their lines, `records` checks them against a pydantic model,
`checks` has rules beyond such a model, `schema_problems` and `wording` describe problems.
"""

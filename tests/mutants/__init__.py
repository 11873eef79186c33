"""Mutants of the shells: small changes that a test must notice.

The cores have properties; the shells (every effectful module outside a `core/`) have tests of what
they do. A mutant asks whether such a test would see a fault: one comparison, one call or one
handler of a shell is changed, and the tests named in its patch must fail. `make mutants` tries them
all, in copies of the tree.

`changes` knows which changes of a statement there are, `covering` which tests run a line, `drawing`
draws the sample, `patches` keeps a mutant and finds its place by content, `trying` runs tests
against it.
"""

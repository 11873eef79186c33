"""What fabric, mediator and federated share: this computer, the terminal, strict YAML, plain texts.

It knows nothing of Ray, sites or learning, and imports none of the three.
"""

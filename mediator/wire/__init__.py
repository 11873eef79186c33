"""What crosses between the processes of a federation: messages, payloads, errors, calls and
blobs.
"""

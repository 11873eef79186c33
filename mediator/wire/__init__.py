"""The wire between a federation's processes: messages, payloads, errors, calls and blobs."""

"""Files named by the SHA-256 of their bytes: the store, partial blobs, locks, full disks."""

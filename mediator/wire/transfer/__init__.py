"""Blobs between a site and its mediator: both ends of Fetch, Offer and Push.

A blob travels in pieces and resumes where it was cut, which the receiver's part shows. No blob is
used before its digest is verified.
"""

from .client import BlobClient, BlobStub, TransferFailed, TransferRefused
from .memory import keep_freed_memory
from .pieces import Piece, pack, unpack
from .service import OFFERS_PER_SITE, BlobService, Gate
from .settings import TransferSettings

__all__ = [
    "OFFERS_PER_SITE",
    "BlobClient",
    "BlobService",
    "BlobStub",
    "Gate",
    "Piece",
    "TransferFailed",
    "TransferRefused",
    "TransferSettings",
    "keep_freed_memory",
    "pack",
    "unpack",
]

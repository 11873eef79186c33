"""Decisions about several sites: pure, without Ray, gRPC, torch, clock, randomness or logging."""

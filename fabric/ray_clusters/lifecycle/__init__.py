"""Keeps declared Ray clusters as declared: observes machines and Ray, decides, acts."""

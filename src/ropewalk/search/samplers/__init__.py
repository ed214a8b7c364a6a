"""Samplers: which configuration a new trial gets. One file per sampler."""

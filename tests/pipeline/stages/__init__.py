"""Tests of what runs a stage."""

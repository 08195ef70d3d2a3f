"""Requests to proposers: choose what to request from which proposer, and convert answers to events."""

"""API clients, one per provider. Each takes a prompt and returns text and usage, with one attempt per call and no
retries.
"""

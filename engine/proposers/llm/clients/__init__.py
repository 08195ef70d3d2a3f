"""API clients, one per provider. Each client takes a prompt and returns text and usage, and never retries."""

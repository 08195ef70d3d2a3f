"""API clients, one per provider. Each client takes a prompt, returns text and usage, and never retries."""

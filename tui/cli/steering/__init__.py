"""Commands that steer a running search: requests, seeds, budgets, prompts and replies."""

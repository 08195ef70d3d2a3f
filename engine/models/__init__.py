"""Language models: one attempt, its retries, what it costs. Prompts and replies are the proposers' business."""

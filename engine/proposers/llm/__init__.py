"""Language models as proposers: build prompts from templates, call models, and parse replies defensively."""

"""Charts of a search: speedup, what the devices did, and spending. A model and a size enter; styled lines leave."""

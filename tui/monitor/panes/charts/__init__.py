"""Charts of a search: speedup, devices' work and spending. Charts take a model and a size, and return styled lines."""

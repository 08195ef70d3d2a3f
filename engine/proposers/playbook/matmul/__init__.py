"""Matrix products: one product of two given tensors, and what is done to its elements."""

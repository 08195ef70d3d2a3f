"""The judge: a device's trusted process, which serves requests, checks kernels and gives verdicts."""

"""Commands that read saved sessions: sessions, show, kernels, export."""

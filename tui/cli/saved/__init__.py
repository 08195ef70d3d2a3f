"""Commands that read saved sessions: sessions, show, report, kernels and export."""

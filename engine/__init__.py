"""The search engine of kernel-tui. Never imports ``tui``, ``textual`` or ``rich``."""

__version__ = "0.1.0"

"""The search engine of kernel-tui. This package never imports ``tui``, ``textual`` or ``rich``."""

__version__ = "0.1.0"

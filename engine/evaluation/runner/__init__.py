"""The runner: the short-lived, isolated process in which one variant is loaded and called.

Started as ``python -I -S .../runner/__main__.py``. Uses the standard library only and imports nothing of the
engine outside this folder, so that it starts in milliseconds and has nothing to tell.
"""

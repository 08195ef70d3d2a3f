"""Choose a kernel's next transformations.

Input: a parent's recipe and all measurements. Output: ranked transformations, settings for their knobs, and a summary
of the changes.
"""

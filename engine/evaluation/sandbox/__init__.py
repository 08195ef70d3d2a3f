"""Run one built kernel in an isolated process, and return its outputs and reported times.

This folder contains the judge's side. ``inside`` contains the code that runs in the isolated process.
"""

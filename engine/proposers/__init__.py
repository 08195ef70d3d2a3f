"""Proposers: whoever writes ideas and variants, behind one small protocol."""

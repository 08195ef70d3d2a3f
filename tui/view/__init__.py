"""Session data for all front ends: sources of events, and figures derived from them."""

"""Proposers: sources of ideas and kernels (playbook, language models, people, recordings) behind one protocol."""

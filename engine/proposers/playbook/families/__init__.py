"""Families of problems that the playbook knows: one file each, registered here."""

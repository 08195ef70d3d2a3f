"""What a search did over time: bests and spending, what its devices did, and how far it has come."""

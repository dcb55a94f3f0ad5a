"""Search: a policy, a coder and a judge in a loop, under a budget."""

"""Rollouts: one episode, and a pool of Ray actors that run many."""

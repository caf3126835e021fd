"""Driving through CARLA servers: what talks to them, and a small server of our own that speaks their protocol."""

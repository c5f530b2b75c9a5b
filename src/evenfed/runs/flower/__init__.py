"""Runs on Flower: what a node does, what the server does, and the processes of both."""

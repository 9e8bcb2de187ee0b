"""What measurements say: times, scaling, communication, and what limits it. Needs no ranks."""

"""What people run: commands, their options, the workers that they start, what they show and write.

The mathematics is elsewhere; a command puts the pieces together.
"""

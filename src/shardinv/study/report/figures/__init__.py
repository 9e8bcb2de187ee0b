"""The figures: each module describes those of one subject, from rows to charts."""

"""Tests of messages: values, types, gradients of both orders, and what the ledger says of them.

They run on the pool of gloo workers; a function named ``check_…`` runs on every rank.
"""

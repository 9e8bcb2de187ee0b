"""The ledger: every message that this rank sent, by block and by operation.

The exchange layer books here and nowhere else moves data, so the account is complete.
"""

from shardinv.ledger.ledger import Entry, Event, Ledger

__all__ = ["Entry", "Event", "Ledger"]

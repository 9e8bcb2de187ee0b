"""What all distributed blocks have in common: the state of what they wrap, and input checks."""

from shardinv.blocks.checks import check_image, check_values
from shardinv.blocks.state import TiedToRanks, share_state

__all__ = ["TiedToRanks", "check_image", "check_values", "share_state"]
